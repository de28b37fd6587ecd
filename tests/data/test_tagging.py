"""Check readers of tagged files on small hand-written files, and the counts of real corpora if present."""

import gzip
import os
import zipfile
from pathlib import Path

import pytest

from dynskip_jax.data.tag_schemes import read_entities
from dynskip_jax.data.tagging import (
    TaggedSentence,
    convert_sentences,
    read_columns,
    read_conll2000,
    read_conll2003,
    read_conllu,
    read_parses,
    read_ud,
    read_word_tag,
    read_wsj_sample,
)
from dynskip_jax.errors import UserError

CONLL2003 = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER


BRUSSELS NNP I-NP I-LOC
"""
EU = TaggedSentence(["EU", "rejects"], ["I-ORG", "O"], [3, 4])
PETER = TaggedSentence(["Peter", "Blackburn"], ["I-PER", "I-PER"], [8, 9])
BRUSSELS = TaggedSentence(["BRUSSELS"], ["I-LOC"], [12])

CONLLU = """\
# sent_id = 1
# text = They didn't buy.
1\tThey\tthey\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\tdo\tAUX\tVBD\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tbuy\tbuy\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tbuy\tbuy\tVERB\tVB\t_\t_\t_\t4:conj\t_
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

1\tvingt et un\tvingt\tNUM\t_\t_\t0\troot\t_\t_
"""

MRG = r"""
( (S
    (NP-SBJ (DT The) (NN asbestos) )
    (VP (VBD rose)
      (NP (-NONE- *T*-1) )
      (NP (CD 1\/2) (NN %) ))
    (-LRB- -LRB-) (. .) ))
( (X (NN yes)) (. ?) )
"""


def write(path, text):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def archive(path, **texts):
    with zipfile.ZipFile(path, "w") as made:
        for name, text in texts.items():
            made.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return path


def error_of(read, *args, **options):
    with pytest.raises(UserError) as caught:
        read(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_columns_with_documents(tmp_path):
    path = write(tmp_path / "eng.train", CONLL2003)
    assert read_columns(path) == [EU, PETER, BRUSSELS]
    short = write(tmp_path / "short", CONLL2003.replace("-DOCSTART- -X- O O", "-DOCSTART-"))
    assert read_columns(short) == [EU, PETER, BRUSSELS]
    assert [s.tags for s in read_columns(path, tag=1)] == [["NNP", "VBZ"], ["NNP", "NNP"], ["NNP"]]
    assert read_columns(path, tag=None)[0] == EU._replace(tags=[])
    assert read_columns(path, word=3, tag=0)[2] == TaggedSentence(["I-LOC"], ["BRUSSELS"], [12])


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_ends_of_lines_tabs_and_compression_make_no_difference(tmp_path, name):
    text = CONLL2003.replace(" ", "\t").replace("\n", "\r\n")
    assert read_columns(write(tmp_path / name, text)) == [EU, PETER, BRUSSELS]
    text = CONLL2003.replace(" ", "  ").rstrip("\n").replace("\n", " \n")
    assert read_columns(write(tmp_path / name, text)) == [EU, PETER, BRUSSELS]


def test_a_no_break_space_belongs_to_its_word(tmp_path):
    assert read_columns(write(tmp_path / "x", "a\u00a0b X\n\u00a0 Y\n")) == [
        TaggedSentence(["a\u00a0b", "\u00a0"], ["X", "Y"], [1, 2])
    ]


def test_one_column_is_words_alone(tmp_path):
    path = write(tmp_path / "x", "the\ncat\n\nsat\n")
    assert [s.words for s in read_columns(path, tag=None)] == [["the", "cat"], ["sat"]]


def test_bad_columns_are_located(tmp_path):
    path = write(tmp_path / "x", "EU NNP O\nrejects O\n")
    assert error_of(read_columns, path) == f"{path}, line 2: 2 columns, but the first line has 3"
    path = write(tmp_path / "x", "\nEU NNP\n")
    assert error_of(read_columns, path, tag=2) == f"{path}, line 2: no column 2 among 2, counted from 0"
    path = write(tmp_path / "x", "-DOCSTART- O\n\n")
    assert error_of(read_columns, path) == f"{path} holds no sentence: is it the right file?"
    assert "is not there" in error_of(read_columns, tmp_path / "absent")


def test_conllu_has_syntactic_words(tmp_path):
    text = CONLLU.replace("NUM\t_", "NUM\tCD")
    first, second = read_conllu(write(tmp_path / "x.conllu.gz", text))
    tags = ["PRON", "AUX", "PART", "VERB", "PUNCT"]
    assert first == TaggedSentence(["They", "did", "n't", "buy", "."], tags, [3, 5, 6, 7, 9])
    assert second == TaggedSentence(["vingt et un"], ["NUM"], [11])
    first, second = read_conllu(tmp_path / "x.conllu.gz", tag="xpos")
    assert first.tags == ["PRP", "VBD", "RB", "VB", "."] and second.tags == ["CD"]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("3\tn't", "3 n't", "line 6: 9 columns separated by tabs, but CoNLL-U has 10"),
        ("4\tbuy", "5\tbuy", "line 7: word 4 has the id '5'"),
        ("1\tThey", "a\tThey", "line 3: word 1 has the id 'a'"),
        ("\tCD", "\t_", "line 11: the word 'vingt et un' has no XPOS"),
    ],
)
def test_bad_conllu_is_located(tmp_path, old, new, expected):
    text = CONLLU.replace("NUM\t_", "NUM\tCD").replace(old, new)
    path = write(tmp_path / "x.conllu", text)
    assert error_of(read_conllu, path, tag="xpos") == f"{path}, {expected}"


def test_words_with_tags_line_by_line(tmp_path):
    path = write(tmp_path / "ca01", "\n\tThe/at 1\\/2/cd 1/2-story/nn ./.\n\n//sym\n")
    assert read_word_tag(path) == [
        TaggedSentence(["The", "1/2", "1/2-story", "."], ["at", "cd", "nn", "."], [2] * 4),
        TaggedSentence(["/"], ["sym"], [4]),
    ]


def test_words_with_tags_in_blocks(tmp_path):
    text = "\n\n[ Pierre/NNP Vinken/NNP ]\n,/, \n[ 61/CD ]\nold/JJ ./. \n\n=====\n\n[ Mr./NNP ]\n"
    assert read_word_tag(write(tmp_path / "x.pos", text), sentences="blocks") == [
        TaggedSentence(
            ["Pierre", "Vinken", ",", "61", "old", "."],
            ["NNP", "NNP", ",", "CD", "JJ", "."],
            [3, 3, 4, 5, 6, 6],
        ),
        TaggedSentence(["Mr."], ["NNP"], [10]),
    ]


@pytest.mark.parametrize("pair", ["cat", "/nn", "cat/"])
def test_bad_pairs_are_located(tmp_path, pair):
    path = write(tmp_path / "x", f"the/at\n\nthe/at {pair} sat/vbd\n")
    assert error_of(read_word_tag, path) == f"{path}, line 3: {pair!r} is no word/tag pair"


def test_parses(tmp_path):
    assert read_parses(write(tmp_path / "x.mrg", MRG)) == [
        TaggedSentence(
            ["The", "asbestos", "rose", "1/2", "%", "-LRB-", "."],
            ["DT", "NN", "VBD", "CD", "NN", "-LRB-", "."],
            [3, 3, 4, 6, 6, 7, 7],
        ),
        TaggedSentence(["yes", "?"], ["NN", "."], [8, 8]),
    ]


def test_brackets_that_are_words(tmp_path):
    text = "( (S (-LRB- () (NN a\u00a0b) (-RRB- )) (NP\n(DT\nthe) (SYM ))) ))\n((NN x))\n"
    assert read_parses(write(tmp_path / "x.mrg", text)) == [
        TaggedSentence(
            ["(", "a\u00a0b", ")", "the", ")"], ["-LRB-", "NN", "-RRB-", "DT", "SYM"], [1, 1, 1, 2, 3]
        ),
        TaggedSentence(["x"], ["NN"], [4]),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("( (NP the dog))", "line 1: unexpected 'the': a bracket holds a label and one word"),
        ("( (NP (DT the) dog))", "line 1: unexpected 'dog'"),
        ("( (S (NN yes) (NP) ))", "line 1: (NP) has no words"),
        ("( (S () (NN yes)))", "line 1: a bracket closes that none has opened"),
        ("( (NN yes)) no", "line 1: unexpected 'no': every word stands in brackets"),
        ("( (NN yes) ())", "line 1: an empty bracket"),
        ("( (NP " + "x" * 1_000_000 + " y))", "line 1: unexpected 'xxxx"),
    ],
)
def test_no_word_of_a_tree_is_lost(tmp_path, text, problem):
    message = error_of(read_parses, write(tmp_path / "x.mrg", text))
    assert problem in message and len(message) < 300


def test_unmatched_brackets_are_located(tmp_path):
    path = write(tmp_path / "x.mrg", MRG + "\n( (S (NN yes))\n")
    assert error_of(read_parses, path) == f"{path}, line 10: the bracket that opens here is not closed"
    path = write(tmp_path / "x.mrg", "( (NN yes))\n)\n")
    assert error_of(read_parses, path) == f"{path}, line 2: a bracket closes that none has opened"


def test_conversion_names_file_and_line(tmp_path):
    sentences = [EU, PETER, BRUSSELS]
    bioes = convert_sentences(sentences, "IOB1", "BIOES", "eng.train")
    assert [s.tags for s in bioes] == [["S-ORG", "O"], ["B-PER", "E-PER"], ["S-LOC"]]
    assert convert_sentences(bioes, "BIOES", "IOB1", "eng.train") == sentences
    message = error_of(convert_sentences, sentences, "BIO2", "BIOES", "eng.train")
    assert message == "eng.train, line 3: the tag I-ORG cannot stand at the start of a sentence in BIO2"
    assert convert_sentences(sentences, "BIO2", "BIOES", "eng.train", repair=True) == bioes


def test_conll2003_folder(tmp_path):
    for name in ("eng.train", "eng.testa", "eng.testb"):
        write(tmp_path / name, CONLL2003)
    corpus = read_conll2003(tmp_path)
    assert list(corpus) == ["train", "valid", "test"] and corpus["test"] == [EU, PETER, BRUSSELS]
    assert read_conll2003(tmp_path, "chunk")["train"][0].tags == ["I-NP", "I-VP"]
    (tmp_path / "eng.testb").unlink()
    assert "eng.testb" in error_of(read_conll2003, tmp_path)


def test_conll2000_archive_and_folder(tmp_path):
    text = "Confidence NN B-NP\nin IN B-PP\n\nthe DT B-NP\n"
    path = archive(tmp_path / "conll2000.zip", conll2000__train_dot_txt=text, conll2000__test_dot_txt=text)
    corpus = read_conll2000(path)
    assert list(corpus) == ["train", "test"]
    assert corpus["train"][0] == TaggedSentence(["Confidence", "in"], ["B-NP", "B-PP"], [1, 2])
    assert read_conll2000(path, "pos")["test"][1].tags == ["DT"]
    folder = tmp_path / "conll2000"
    zipfile.ZipFile(path).extractall(tmp_path)
    assert read_conll2000(folder) == corpus


def test_bad_archives_are_named(tmp_path):
    path = archive(tmp_path / "x.zip", conll2000__train_dot_txt="Confidence NN B-NP\nin IN\n")
    assert error_of(read_conll2000, path) == (
        f"{path} (conll2000/train.txt), line 2: 2 columns, but the first line has 3"
    )
    assert "conll2000/train.txt" in error_of(read_conll2000, archive(tmp_path / "y.zip", other="x"))
    assert "no zip archive" in error_of(read_conll2000, write(tmp_path / "z.zip", "text"))
    assert "cannot be read" in error_of(read_conll2000, tmp_path / "absent.zip")
    path = archive(tmp_path / "u.zip", conll2000__train_dot_txt=b"caf\xe9 NN O\n")
    assert "byte offset 3" in error_of(read_conll2000, path)


def test_ud_folder(tmp_path):
    for name in ("en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu.gz", "en_ewt-ud-test.conllu"):
        write(tmp_path / name, CONLLU)
    corpus = read_ud(tmp_path)
    assert list(corpus) == ["train", "valid", "test"]
    assert all(sentences == corpus["train"] and len(sentences) == 2 for sentences in corpus.values())
    write(tmp_path / "en_gum-ud-test.conllu", CONLLU)
    assert "en_gum-ud-test.conllu" in error_of(read_ud, tmp_path)
    assert "has none" in error_of(read_ud, tmp_path / "absent")


def test_wsj_sample(tmp_path):
    path = archive(tmp_path / "treebank.zip", b_dot_mrg="( (NN two) )\n", a_dot_mrg=MRG, raw="x")
    sentences = read_wsj_sample(path)
    assert [len(s.words) for s in sentences] == [7, 2, 1] and sentences[2].words == ["two"]
    zipfile.ZipFile(path).extractall(tmp_path / "folder")
    assert read_wsj_sample(tmp_path / "folder") == sentences
    assert "no .mrg files" in error_of(read_wsj_sample, tmp_path)


def corpus_folder(name):
    folder = Path(os.environ.get("DYNSKIP_DATA_DIR", "")) / name
    if "DYNSKIP_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip(f"no corpus: $DYNSKIP_DATA_DIR/{name} is not there")
    return folder


def sizes(corpus):
    return {split: (len(found), sum(len(s.words) for s in found)) for split, found in corpus.items()}


@pytest.mark.slow
def test_published_counts_of_conll2003():
    corpus = read_conll2003(corpus_folder("conll2003"))
    assert sizes(corpus) == {"train": (14041, 203621), "valid": (3250, 51362), "test": (3453, 46435)}
    found = {split: sum(len(read_entities(s.tags, "IOB1")) for s in corpus[split]) for split in corpus}
    assert found == {"train": 23499, "valid": 5942, "test": 5648}
    for split in ("valid", "test"):
        bioes = convert_sentences(corpus[split], "IOB1", "BIOES", split)
        assert convert_sentences(bioes, "BIOES", "IOB1", split) == corpus[split]


@pytest.mark.slow
def test_published_counts_of_conll2000():
    corpus = read_conll2000(corpus_folder("nltk") / "conll2000.zip")
    assert sizes(corpus) == {"train": (8936, 211727), "test": (2012, 47377)}
    assert sum(len(read_entities(s.tags, "BIO2")) for s in corpus["test"]) == 23852


@pytest.mark.slow
def test_counts_of_english_ewt():
    corpus = read_ud(corpus_folder("ud_ewt"))
    assert sizes(corpus) == {"train": (12544, 204577), "valid": (2001, 25147), "test": (2077, 25094)}
    assert len({tag for s in corpus["train"] for tag in s.tags}) == 17


@pytest.mark.slow
def test_counts_of_the_wsj_sample():
    assert sizes({"all": read_wsj_sample(corpus_folder("nltk") / "treebank.zip")}) == {"all": (3914, 94084)}
