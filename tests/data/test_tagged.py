"""Check tagged files, what adding tags keeps, and how corpora are found, split and encoded."""

import unicodedata
import zipfile
from functools import partial

import pytest
from written import CONLL2003, CONLLU, assert_refused, write

from dynskip_jax.data import find_tagged_corpus
from dynskip_jax.data.tagged import with_entities
from dynskip_jax.data.tagged_files import CONLLU_COLUMNS, lines_to_tag, read_columns
from dynskip_jax.errors import UserError

SENTENCES = [
    (["EU", "rejects"], ["I-ORG", "O"], [3, 4]),
    (["Peter", "Blackburn"], ["I-PER", "I-PER"], [8, 9]),
    (["BRUSSELS"], ["I-LOC"], [12]),
]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("-DOCSTART- -X- O O", "-DOCSTART-"),
        lambda text: "\ufeff" + text.replace(" ", "\t").replace("\n", "\r\n"),
        lambda text: text.replace(" ", "  ").rstrip("\n").replace("\n", " \r"),
    ],
)
def test_columns_of_any_typography(tmp_path, change):
    path = write(tmp_path / "x.gz", change(CONLL2003))
    assert [sentence[:3] for sentence in read_columns(path)] == SENTENCES
    assert read_columns(path, beside=(1, -2))[0].columns == [("NNP", "I-NP"), ("VBZ", "I-VP")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("New York\tB-LOC\n#hash\tO\n", ["New York", "#hash"]),
        ("# O\n\n# O\n", ["#", "#"]),
        ("-DOCSTART- -X- O\n\n# $ O\n5 CD O\n", ["#", "5"]),
        ("a\u00a0b X\n\u00a0 Y\n", ["a\u00a0b", "\u00a0"]),
    ],
)
def test_pound_signs_and_blanks_of_other_kinds_are_words(text, words):
    assert [word for block in lines_to_tag(text.split("\n")) for word in block.words] == words


def test_tags_in_two_unicode_forms_are_one(tmp_path):
    for split, form in (("train", "NFC"), ("dev", "NFD"), ("test", "NFD")):
        write(tmp_path / f"{split}.txt", f"w {unicodedata.normalize(form, 'B-café')}\n\n")
    corpus = with_entities(find_tagged_corpus("columns", tmp_path))
    assert {tag[2:] for tag in corpus.entity_tags if tag != "O"} == {"café"}


def read_conllu(path, tag="upos"):
    return read_columns(path, format="conllu", tag=CONLLU_COLUMNS[tag])


def test_conllu_has_syntactic_words(tmp_path):
    path = write(tmp_path / "x.conllu.gz", CONLLU)
    first, second = read_conllu(path)
    assert first[:3] == (
        ["Do", "n't", "pay", "26 000"],
        ["AUX", "PART", "VERB", "NUM"],
        [4, 5, 6, 8],
    )
    assert second[:3] == (["Yes"], ["INTJ"], [12]) and read_conllu(path, "xpos")[1].tags == ["UH"]


DO = "1\tDo\tdo\tAUX"
BAD = [
    (read_columns, "EU NNP O\nrejects O\n", "line 2: 2 columns, not 3"),
    (read_columns, "\tB-PER\n", "line 1: the word in column 0 is empty"),
    (
        read_columns,
        "a \x1b]0;x\x07\n",
        "line 1: the tag '\\x1b]0;x\\x07' has characters that do not print",
    ),
    (partial(read_columns, tag=5), CONLL2003, "line 3: no column 5 among 4, counted from 0"),
    (read_columns, "-DOCSTART- O\n\n", "holds no sentence: is it the right file?"),
    (
        read_conllu,
        CONLLU.replace("1\tDo", "1 Do"),
        "line 5: 10 columns, not 9",
    ),
    (
        read_conllu,
        CONLLU.replace(DO, "1\tDo\tdo\t_"),
        "line 4: the word 'Do' has no tag in column 3",
    ),
]


@pytest.mark.parametrize(("read", "text", "problem"), BAD)
def test_bad_lines_are_named(tmp_path, read, text, problem):
    assert_refused(read, write(tmp_path / "x", text), problem)


def split_files(folder, template, text, names=("train", "dev", "test")):
    for name in names:
        write(folder / template.format(name), text)
    return folder


def test_conll2003(tmp_path, monkeypatch):
    folder = split_files(
        tmp_path / "conll2003", "{}", CONLL2003, ("eng.train", "eng.testa", "eng.testb")
    )
    corpus = with_entities(find_tagged_corpus("conll2003", folder, beside=(1,)))
    assert [s.tags for s in corpus.splits["dev"]] == [["S-ORG", "O"], ["B-PER", "E-PER"], ["S-LOC"]]
    assert corpus.splits["test"][2].columns == [("NNP",)] and corpus.scheme == "IOB1"
    assert corpus.sizes == {"train": 3, "dev": 3, "test": 3} and corpus.entity_tags[:2] == (
        "O",
        "B-LOC",
    )
    assert find_tagged_corpus("conll2003", folder, tag_column=1).train_tags == ("NNP", "VBZ")
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(tmp_path))
    again, other = (with_entities(find_tagged_corpus("conll2003", beside=of)) for of in ((1,), ()))
    assert again.fingerprint == corpus.fingerprint != other.fingerprint
    with pytest.raises(
        UserError, match=r"eng\.train, line 3: the tag I-ORG cannot stand at .*BIO2"
    ):
        with_entities(find_tagged_corpus("conll2003"), "BIO2")
    (folder / "eng.testa").unlink()
    with pytest.raises(UserError, match=r"has no file eng\.testa"):
        find_tagged_corpus("conll2003", folder)


def test_conll2000_draws_the_dev_that_it_lacks(tmp_path, monkeypatch):
    chunks = "".join(f"w{i} NN B-NP\n\n" for i in range(40))
    path = tmp_path / "nltk" / "conll2000.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conll2000/train.txt", chunks)
        archive.writestr("conll2000/test.txt", "a NN B-NP\n")
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(tmp_path))
    first = find_tagged_corpus("conll2000")
    assert (
        first.sizes == {"train": 36, "dev": 4, "test": 1}
        and "dev: 4 sentences of train" in first.notes[0]
    )
    words = [sentence.words[0] for split in ("train", "dev") for sentence in first.splits[split]]
    assert sorted(words) == sorted(f"w{i}" for i in range(40))
    assert find_tagged_corpus("conll2000", path).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("dataset", "template", "text"),
    [("ud", "en_x-ud-{}.conllu.gz", CONLLU), ("columns", "own.{}.conll", "Do\tAUX\nn't\tPART\n")],
)
def test_parts_of_speech(tmp_path, dataset, template, text):
    corpus = find_tagged_corpus(dataset, split_files(tmp_path / "own", template, text))
    assert corpus.splits["dev"][0].words[:2] == ["Do", "n't"] and "AUX" in corpus.train_tags
    assert corpus.name == ("own, UPOS" if dataset == "ud" else "own") and corpus.scheme is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "a B-X NN\n",
            "line 1: 'NN' is no tag of BIO2, which has O, and B, I",
        ),
        ("a O\nb B-Y\n", "line 2: S-Y is not in train, nor is another tag of its type"),
    ],
)
def test_tags_that_cannot_be_learned_are_located(tmp_path, text, problem):
    split_files(tmp_path, "{}.txt", "a B-X\n")
    path = write(tmp_path / ("train.txt" if "NN" in text else "test.txt"), text)
    assert_refused(lambda _: with_entities(find_tagged_corpus("columns", tmp_path)), path, problem)
