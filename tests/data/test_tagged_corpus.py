"""Check tagged corpora: where they are looked for, their splits, and the errors of wrong files."""

import itertools
import zipfile

import pytest

from dynskip_jax.data.tagged_corpus import (
    cut,
    entity_tags,
    find_entity_corpus,
    find_part_of_speech_corpus,
)
from dynskip_jax.data.tagging import TaggedSentence
from dynskip_jax.errors import UserError

TRAIN = "U.N. NNP I-NP I-ORG\nofficial NN I-NP O\n\nPeter NNP I-NP I-PER\nParker NNP I-NP B-PER\n"
DEV = "-DOCSTART- -X- O O\n\nBonn NNP I-NP I-ORG\n"
TEST = "Ann NNP I-NP I-PER\nLee NNP I-NP I-PER\n"


def conll2003(folder, train=TRAIN, dev=DEV, test=TEST):
    folder.mkdir(exist_ok=True)
    for name, text in zip(("eng.train", "eng.testa", "eng.testb"), (train, dev, test), strict=True):
        (folder / name).write_text(text)
    return folder


def test_conll2003_in_bioes(tmp_path):
    folder = conll2003(tmp_path / "conll2003")
    for corpus in (
        find_entity_corpus("conll2003", folder, environ={}),
        find_entity_corpus("conll2003", environ={"DYNSKIP_DATA_DIR": str(tmp_path)}),
    ):
        assert corpus.sizes == {"train": 2, "dev": 1, "test": 1} and corpus.scheme == "BIOES"
        assert [s.tags for s in corpus.splits["train"]] == [["S-ORG", "O"], ["S-PER", "S-PER"]]
        assert corpus.splits["test"][0].tags == ["B-PER", "E-PER"]
        assert entity_tags(corpus) == (
            "O", "B-ORG", "I-ORG", "E-ORG", "S-ORG", "B-PER", "I-PER", "E-PER", "S-PER",
        )  # fmt: skip
    other = find_entity_corpus("conll2003", conll2003(tmp_path / "b", dev=DEV.replace("ORG", "PER")))
    assert other.fingerprint != corpus.fingerprint


@pytest.mark.parametrize(
    "texts, message",
    [
        (dict(dev=DEV.replace("I-ORG", "I-LOC")), "eng.testa, line 3: the tag S-LOC is not in train, nor"),
        (
            dict(test=TEST.replace("Lee NNP I-NP", "Lee")),
            "eng.testb, line 2: 2 columns, but the first line has 4",
        ),
        (dict(train=TRAIN.replace("I-PER", "E-PER")), "eng.train, line 4: 'E-PER' is no tag of IOB1"),
        (dict(train="\n"), "eng.train holds no sentence"),
    ],
)
def test_bad_lines_are_named(tmp_path, texts, message):
    folder = conll2003(tmp_path / "bad", **texts)
    with pytest.raises(UserError, match=message) as caught:
        find_entity_corpus("conll2003", folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_what_is_not_there_is_asked_for(tmp_path):
    for dataset, words in (("conll2003", "eng.testb"), ("conll2000", "conll2000.zip"), ("columns", "--data")):
        with pytest.raises(UserError, match=words) as caught:
            find_entity_corpus(dataset, environ={})
        assert "--data" in str(caught.value)
    for dataset, words in (("ud", "ud_ewt"), ("wsj", "treebank.zip"), ("conllu", "train, dev and test")):
        with pytest.raises(UserError, match=words):
            find_part_of_speech_corpus(dataset, environ={})
    folder = conll2003(tmp_path / "c")
    (folder / "eng.testb").unlink()
    with pytest.raises(UserError, match=r"has no eng\.testb"):
        find_entity_corpus("conll2003", folder)
    with pytest.raises(UserError, match="is no folder"):
        find_entity_corpus("conll2003", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no file for the test split: put one there named test\.txt"):
        find_entity_corpus("columns", folder)


def chunks(count):
    return "".join(f"w{i} NN B-NP\nruns VB B-VP\nfast RB I-VP\n\n" for i in range(count))


@pytest.mark.parametrize("packed", [False, True])
def test_conll2000_takes_its_dev_from_train(tmp_path, packed):
    place = tmp_path / "conll2000.zip" if packed else tmp_path
    if packed:
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("conll2000/train.txt", chunks(25))
            archive.writestr("conll2000/test.txt", chunks(3))
    else:
        (place / "train.txt").write_text(chunks(25))
        (place / "test.txt").write_text(chunks(3))
    corpora = [find_entity_corpus("conll2000", place, seed=seed) for seed in (0, 0, 1)]
    assert corpora[0].sizes == {"train": 23, "dev": 2, "test": 3}
    assert corpora[0].splits == corpora[1].splits != corpora[2].splits
    assert "2 sentences of train, drawn with the seed 0" in corpora[0].note
    first = {sentence.words[0] for split in ("train", "dev") for sentence in corpora[0].splits[split]}
    assert len(first) == 25
    assert corpora[0].splits["dev"][0].tags == ["S-NP", "B-VP", "E-VP"]


def test_own_files_of_columns_and_pairs(tmp_path):
    for name, text in (("train", "a X\nb B-Y\n"), ("my-dev", "b B-Y\n"), ("test", "a O\n")):
        (tmp_path / f"{name}.conll").write_text(text.replace("X", "O"))
    corpus = find_entity_corpus("columns", tmp_path, scheme="BIO2")
    assert corpus.splits["dev"][0].tags == ["S-Y"]
    tagged = find_part_of_speech_corpus("columns", tmp_path)
    assert tagged.train_tags == ("B-Y", "O") and tagged.scheme is None
    with pytest.raises(UserError, match=r"train\.conll, line 2: the tag B-Y cannot end"):
        find_entity_corpus("columns", tmp_path, scheme="BIOES")
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("The/DT cat/NN 1\\/2/CD\nIt/PRP\n")
    pairs = find_part_of_speech_corpus("word_tag", tmp_path)
    assert pairs.splits["train"][0][:2] == (["The", "cat", "1/2"], ["DT", "NN", "CD"])
    assert pairs.sizes["test"] == 2


def test_a_tag_that_train_lacks_is_named_with_its_line(tmp_path):
    for name, tag in (("train", "A"), ("dev", "A"), ("test", "Z")):
        (tmp_path / f"{name}.txt").write_text(f"x A\n\ny {tag}\n")
    corpus = find_part_of_speech_corpus("columns", tmp_path)
    with pytest.raises(UserError, match=r"test\.txt, line 3: the tag Z is not in train: help"):
        corpus.check_tags(corpus.train_tags, ": help")


def test_cuts_are_disjoint_and_whole():
    sentences = [TaggedSentence([str(i)], ["X"], [1]) for i in range(20)]
    parts = cut(sentences, [3, 5], seed=4)
    assert [len(part) for part in parts] == [3, 5, 12]
    numbers = [[int(sentence.words[0]) for sentence in part] for part in parts]
    assert sorted(itertools.chain(*numbers)) == list(range(20)) and all(
        part == sorted(part) for part in numbers
    )


# Numbers of sentences in train, dev and test, and of tags, as published or after splitting published files.
REAL = {
    "conll2003": (find_entity_corpus, (14041, 3250, 3453), 17),
    "conll2000": (find_entity_corpus, (8043, 893, 2012), 45),
    "ud": (find_part_of_speech_corpus, (12544, 2001, 2077), 17),
    "wsj": (find_part_of_speech_corpus, (3132, 391, 391), 45),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_corpora(name):
    find, sizes, num_tags = REAL[name]
    try:
        corpus = find(name)
    except UserError as error:
        pytest.skip(f"no corpus: {error}")
    assert tuple(corpus.sizes.values()) == sizes
    tags = corpus.train_tags if corpus.scheme is None else entity_tags(corpus)
    assert len(tags) == num_tags
    corpus.check_tags(tags, "")


def columns(folder, template, texts, order):
    for name, text in zip(("train", "testa", "testb"), texts, strict=True):
        lines = [" ".join(line.split()[i] for i in order) if line else "" for line in text.split("\n")]
        (folder / template.format(name)).write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("template", ["{}.txt", "my_{}.conll", "eng.{}"])
def test_columns_in_any_order(tmp_path, template):
    texts = [text.replace("-DOCSTART- -X- O O\n", "") for text in (TRAIN, DEV, TEST)]
    folder = columns(tmp_path, template, texts, (3, 1, 0, 2))
    corpus = find_entity_corpus("columns", folder, word=2, tag=0, beside=(1,))
    assert corpus.file_scheme == "IOB1" and corpus.scheme == "BIOES"
    assert corpus.note.startswith("tags of train: IOB1: entities begin with I")
    expected = find_entity_corpus("conll2003", conll2003(tmp_path / "expected"))
    assert corpus.splits["train"][0].words == ["U.N.", "official"]
    assert [s.tags for s in corpus.splits["train"]] == [s.tags for s in expected.splits["train"]]
    assert corpus.splits["train"][0].columns == [("NNP",), ("NN",)]
    with pytest.raises(UserError, match=r"train\S* has tags of IOB1 as words, in column 0: choose another"):
        find_entity_corpus("columns", folder, tag=1)
    with pytest.raises(UserError, match=r"no tags of entities in column 1 .*; columns with such tags: 0, 3"):
        find_entity_corpus("columns", folder, word=2, tag=1)
    tagged = find_part_of_speech_corpus("columns", folder, word_column=2, tag_column=1)
    assert tagged.train_tags == ("NN", "NNP") and tagged.file_scheme is None


def test_the_columns_of_tags_and_words_are_no_other_columns(tmp_path):
    folder = conll2003(tmp_path / "conll2003")
    for beside, problem in (
        ((1, 3), "column 3 has the tags"),
        ((-1,), "3 has the tags"),
        ((0,), "the words"),
    ):
        with pytest.raises(
            UserError, match=rf"eng\.train, line 1: .*{problem}.*: leave it out of --columns$"
        ):
            find_entity_corpus("conll2003", folder, beside=beside)
    (tmp_path / "train.txt").write_text(chunks(25))
    (tmp_path / "test.txt").write_text(chunks(3))
    with pytest.raises(UserError, match="column 2 has the tags"):
        find_entity_corpus("conll2000", tmp_path, beside=(2,))
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text(chunks(1))
    for tag in (2, -1):
        with pytest.raises(UserError, match="column 2 has the tags"):
            find_entity_corpus("columns", tmp_path, tag=tag, beside=(2,))
    with pytest.raises(UserError, match="column 1 has the words"):
        find_entity_corpus("columns", tmp_path, word=1, beside=(1,))
    corpus = find_entity_corpus("columns", tmp_path, word=1, beside=(0,))
    assert corpus.splits["dev"][0].columns == [("w0",), ("runs",), ("fast",)]


def test_tags_without_types(tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("New York\tB\nCity\tI\nis\tO\n")
    corpus = find_entity_corpus("columns", tmp_path)
    assert corpus.splits["test"][0][:2] == (["New York", "City", "is"], ["B", "E", "O"])
    assert entity_tags(corpus) == ("O", "B", "I", "E", "S")
    assert "tags have no types" in corpus.note


def test_long_tags_in_messages(tmp_path):
    for name, tag in (("train", "A"), ("dev", "A"), ("test", "Z" * 1_000_000)):
        (tmp_path / f"{name}.txt").write_text(f"x {tag}\n")
    corpus = find_part_of_speech_corpus("columns", tmp_path)
    with pytest.raises(UserError) as caught:
        corpus.check_tags(corpus.train_tags, ": help")
    assert len(str(caught.value)) < 300


def test_words_are_not_taken_for_parts_of_speech(tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text("".join(f"T{i % 40} word{i % 100}\n" for i in range(200)))
    with pytest.raises(UserError, match="has 100 different tags for 200 words in column -1: is it the"):
        find_part_of_speech_corpus("columns", tmp_path)
    assert len(find_part_of_speech_corpus("columns", tmp_path, word_column=1, tag_column=0).train_tags) == 40
