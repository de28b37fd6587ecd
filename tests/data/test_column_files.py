"""Check column and CoNLL-U files: which lines are words, and that adding tags loses no line."""

import pytest

from dynskip_jax.data import read_columns, read_conllu
from dynskip_jax.data.column_files import (
    column_rows,
    entity_of_misc,
    lines_to_tag,
    split_columns,
    tagged_lines,
)
from dynskip_jax.errors import UserError

CONLLU = """\
# sent_id = 1
# text = Don't pay 26 000.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tpay\tpay\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tpay\tpay\tVERB\tVB\t_\t_\t_\t3:conj\t_
4\t26 000\t26000\tNUM\tCD\t_\t3\tobj\t_\t_


# sent_id = 2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""

MULTICONER = """\
# id 5239d808-f300-46ea-aa3b-5093040213a3\tdomain=en
its _ _ O
# _ _ B-SYM

# id 2\tdomain=en
# _ _ O
"""


def words_of(text):
    return [row.fields[0] for row in column_rows(text.split("\n")) if row.fields is not None]


def test_a_tab_separates_and_spaces_beside_it_do_not():
    assert split_columns("New York\tB-LOC") == ["New York", "B-LOC"]
    assert split_columns("Anna\t\tB-PER") == ["Anna", "", "B-PER"]
    assert split_columns(" Anna  NNP B-PER ") == ["Anna", "NNP", "B-PER"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MULTICONER, ["its", "#", "#"]),
        ("# sent_id = 1\na X Y Z\n", ["a"]),
        ("# text = It is so\n# newdoc\nIt O\n\n# O\n", ["It", "#"]),
        ("# id 7\tdomain=en\nNew York\tB-LOC\n#hash\tO\n\n#tag\tO\n", ["New York", "#hash", "#tag"]),
        ("# 5 4\nthe O\n", ["the"]),
        ("# # PunctType=Currency O\nx y z O\n", ["#", "x"]),
        ("# O\n\n# O\n", ["#", "#"]),
        ("-DOCSTART- -X- O\n\n# $ O\n5 CD O\n", ["#", "5"]),
        ("-DOCSTART- -X-\tO\n\na b\tO\n", ["a b"]),
    ],
)
def test_comments_are_no_words_and_pound_signs_are(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("format", "text", "word"),
    [
        ("conllu", CONLLU, 1),
        ("columns", MULTICONER, 0),
        ("columns", "\n\n-DOCSTART- O\n\nNew York\tB-LOC\n\n\nx\tO\n\n", 0),
        ("columns", "# only a comment = here\n\n", 0),
        ("columns", "", 0),
    ],
)
def test_predict_reads_what_training_reads_and_writes_every_line(tmp_path, format, text, word):
    (tmp_path / "x").write_text(text)
    blocks = list(lines_to_tag(text.splitlines(keepends=True), format, word=word))
    words = [block.words for block in blocks if block.words]
    if words:
        read = read_conllu if format == "conllu" else read_columns
        assert words == [sentence.words for sentence in read(tmp_path / "x")]
    tagged = [
        line for block in blocks for line in tagged_lines(block, ["T"] * len(block.words), format, column=3)
    ]
    lines = text.splitlines()
    assert len(tagged) == len(lines)
    places = {place for place, (old, new) in enumerate(zip(lines, tagged, strict=True)) if old != new}
    assert len(places) == sum(map(len, words))
    for place in places:
        if format == "conllu":
            assert tagged[place].split("\t")[3] == "T" and len(tagged[place].split("\t")) == 10
        else:
            assert tagged[place] == lines[place] + ("\tT" if "\t" in lines[place] else " T")


def test_other_columns_are_read_as_they_are():
    (block,) = lines_to_tag(["Anna\t\tB-PER\n", "New York\tNNP\tB-LOC\n"], beside=(1,))
    assert block.words == ["Anna", "New York"] and block.columns == [("",), ("NNP",)]


@pytest.mark.parametrize(
    ("misc", "after"), [("_", "NER=O"), ("A=b", "A=b|NER=O"), ("NER=B-X|A=b", "A=b|NER=O")]
)
def test_tags_of_entities_are_an_entry_of_misc(misc, after):
    (block,) = lines_to_tag([f"1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t{misc}\n"], "conllu", beside=(9,))
    assert entity_of_misc(block.columns[0][0]) == ("B-X" if "B-X" in misc else "_")
    (line,) = tagged_lines(block, ["O"], "conllu", column=9)
    assert line == f"1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t{after}"


def test_sentences_are_yielded_as_they_come():
    def typed():
        yield from ("a\n", "\n")
        raise AssertionError

    assert next(lines_to_tag(typed())).words == ["a"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1\t\tdo\tAUX", "line 4: the form of the id '1'"),
        ("1\t \tdo\tAUX", "line 4: the form of the id '1'"),
        ("2-1\tDo\tdo\tAUX", "line 4: the range 2-1 cannot stand before word 1: expected 1-N with N above 1"),
        ("1-1\tDo\tdo\tAUX", "line 4: the range 1-1 cannot stand before word 1"),
        ("1-9\tDo\tdo\tAUX", "the range 1-9 cannot stand before word 1"),
        ("x\tDo\tdo\tAUX", "line 4: word 1 has the id 'x'"),
        ("١\tDo\tdo\tAUX", "line 4: word 1 has the id '١'"),
        ("1\tDo\tdo\t", "line 4: the tag of the word 'Do' is empty"),
        ("1\tDo\tdo\t\x1b[31mX", "line 4: the tag '\\x1b[31mX' has characters that do not print"),
        ("1" * 100_000 + "\tDo\tdo\tAUX", "line 4: word 1 has the id '1111"),
    ],
)
def test_bad_conllu_is_located(tmp_path, line, problem):
    text = CONLLU.replace("1\tDo\tdo\tAUX", line)
    (tmp_path / "x").write_text(text)
    with pytest.raises(UserError) as caught:
        read_conllu(tmp_path / "x")
    assert problem in str(caught.value) and len(str(caught.value)) < 300


def test_a_range_ends_within_its_sentence(tmp_path):
    (tmp_path / "x").write_text(CONLLU.replace("1-2\t", "1-5\t"))
    with pytest.raises(UserError, match=r"line 9: the sentence ends after word 4, within a range up to 5"):
        read_conllu(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("\tB-PER\n", {}, "line 1: the word in column 0 is empty"),
        ("a b\t\n", {}, "line 1: the tag of the word 'a b' is empty"),
        ("a\tO\nb\t\tO\n", {}, "line 2: 3 columns, but the first line has 2"),
        ("a \x1b]0;x\x07\n", {}, "line 1: the tag '\\x1b]0;x\\x07' has characters that do not print"),
        ("x" * 1_000_000 + "\t\n", {}, "line 1: the tag of the word 'xxxx"),
        ("a O\n", {"word": 5}, "line 1: no column 5 among 2"),
    ],
)
def test_bad_columns_are_located(tmp_path, text, options, problem):
    (tmp_path / "x").write_text(text)
    with pytest.raises(UserError) as caught:
        read_columns(tmp_path / "x", **options)
    assert problem in str(caught.value) and len(str(caught.value)) < 300


def test_line_ends_of_all_systems(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "x").write_bytes("\ufeffNew York\tB-LOC||a\tO|".replace("|", end).encode())
        assert [s.words for s in read_columns(tmp_path / "x")] == [["New York"], ["a"]]
