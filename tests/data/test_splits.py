"""Check that the files of train, valid and test are found by their common names."""

import pytest

from dynskip_jax.data.splits import COLUMN_ENDINGS, TEXT_ENDINGS, find_splits
from dynskip_jax.errors import UserError


def folder_of(tmp_path, names):
    for name in names.split():
        (tmp_path / name).write_text("x")
    return tmp_path


def error_of(*arguments, **options):
    with pytest.raises(UserError) as caught:
        find_splits(*arguments, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    return str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        "train.txt valid.txt test.txt",
        "train.tsv dev.tsv test.tsv.gz",
        "my_train.csv my_val.csv my_test.csv",
        "en_ewt-ud-train.conllu en_ewt-ud-dev.conllu en_ewt-ud-test.conllu",
        "eng.train eng.testa eng.testb",
        "Train.JSONL Validation.JSONL Test.JSONL",
        "wiki.train.tokens wiki.valid.tokens wiki.test.tokens",
        "training.iob development.iob test.iob",
    ],
)
def test_common_names(tmp_path, names):
    folder = folder_of(tmp_path, f"{names} README.md notes.txt trainer.txt contest.tsv latest.csv")
    assert " ".join(path.name for path in find_splits(folder).values()) == names
    assert list(find_splits(folder)) == ["train", "valid", "test"]


def test_two_files_missing_files_and_other_endings(tmp_path):
    folder = folder_of(tmp_path, "train.txt train.conll dev.txt")
    assert "more than one file for the train split (train.conll, train.txt)" in error_of(folder)
    assert find_splits(folder, TEXT_ENDINGS, needed=("train",)).keys() == {"train", "valid"}
    assert "has no file for the test split: put one there named test.txt" in error_of(folder, TEXT_ENDINGS)
    assert "named ptb.train.txt" in error_of(folder, TEXT_ENDINGS, prefix="ptb.")
    assert "train.conll, train.txt" in error_of(folder, COLUMN_ENDINGS)
    assert "is not a readable folder" in error_of(folder / "train.txt")
    assert "is not a readable folder" in error_of("a\0b")
    for number in range(50):
        (tmp_path / f"{'x' * 200}{number}-test.txt").write_text("x")
    assert "more than one file for the test split" in error_of(folder, TEXT_ENDINGS)
