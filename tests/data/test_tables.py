"""Check that no delimiter is guessed, how columns are found, and which rows are left out."""

import csv
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import assert_refused, write

from dynskip_jax.data.labelled import find_labelled_text, read_labelled_file
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.data.tables import DELIMITERS
from dynskip_jax.errors import UserError

PAIRS = list(itertools.permutations(DELIMITERS, 2))


def table(path, mark, rows, quoting=csv.QUOTE_MINIMAL):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=mark, quoting=quoting).writerows(rows)
    return path


def pairs(path, **options):
    return [(example.text, example.label) for example in read_labelled_file(path, **options)]


def texts_with(mark):
    return [(f"well{mark}fine", "pos"), (f"oh{mark}dull", "neg")] * 5


@pytest.mark.parametrize(("own", "other"), PAIRS)
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("names", [None, ("text", "label"), ("the text", "its label"), "mixed"])
def test_two_delimiters_that_fit_are_refused(tmp_path, own, other, quoting, names):
    mark = DELIMITERS[own]
    rows = texts_with(DELIMITERS[other])
    columns = dict(text=0, label=1)
    if names == "mixed":  # the other delimiter also stands in the header
        names = (f"text{DELIMITERS[other]}of it", "label")
        columns["header"] = True
    elif names:
        columns = dict(text=names[0], label=names[1])
    given = [names, *rows] if names else rows
    path = table(tmp_path / "x.csv", mark, given, quoting)
    if ("header" not in columns and names) or quoting != csv.QUOTE_MINIMAL:
        assert pairs(path, **columns) == rows
    else:
        assert_refused(lambda path: pairs(path, **columns), path, "give one of them as --delimiter")
        with pytest.raises(UserError, match=rf"({own} and {other}|{other} and {own})"):
            pairs(path, **columns)
    assert pairs(path, **columns, delimiter=own) == rows


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_a_delimiter_of_some_texts_is_not_that_of_the_table(tmp_path, own, other):
    rows = [*texts_with(DELIMITERS[other])[:1], *[("fine", "pos"), ("dull", "neg")] * 9]
    path = table(tmp_path / "x.csv", DELIMITERS[own], rows)
    corpus = find_labelled_text(path, text=0, label=1)
    assert corpus.classes == ("neg", "pos")
    told = [note for note in corpus.notes if "--delimiter" in note]
    assert len(told) == 1 and f"is separated by {own}" in told[0] and f"by {other}" in told[0]


def test_a_broken_row_does_not_make_another_delimiter_right(tmp_path):
    path = write(tmp_path / "x.csv", "well, fine;pos\noh; dull, x;neg\n")
    assert_refused(lambda path: pairs(path, text=0, label=1), path, "(comma and semicolon)")
    with pytest.raises(UserError, match="line 2: 3 columns, but the first line has 2"):
        pairs(path, text=0, label=1, delimiter="semicolon")


def test_wrong_quotes_do_not_make_another_delimiter_right(tmp_path):
    path = write(tmp_path / "x.csv", 'well, y;"so" it;pos\noh, z;neg;neg\n')
    assert_refused(lambda path: pairs(path, text=0, label=1), path, "(comma and semicolon)")
    path = write(tmp_path / "y.csv", '"so" it;pos\nwell;neg\n')
    assert_refused(lambda path: pairs(path, text=0, label=1), path, "line 1: no CSV")


def test_the_only_delimiter_is_that_of_broken_rows_too(tmp_path):
    path = write(tmp_path / "x.csv", "text;label\n" + "a;b;c\n" * 5)
    assert_refused(
        pairs, path, "line 2: 3 columns, but the first line has 2 (separated by semicolon)"
    )


@given(
    st.sampled_from(list(DELIMITERS)),
    st.lists(
        st.tuples(st.text("ab,;\t|\"' ", min_size=1), st.sampled_from(["x", "y"])), min_size=1
    ),
    st.booleans(),
)
def test_no_row_is_cut_at_a_delimiter_of_its_text(tmp_path_factory, own, rows, has_header):
    rows = [(f"a{text}b", label) for text, label in rows]
    given = [("text", "label"), *rows] if has_header else rows
    path = table(tmp_path_factory.mktemp("t") / "x.csv", DELIMITERS[own], given)
    columns = {} if has_header else dict(text=0, label=1)
    try:
        found = pairs(path, **columns)
    except UserError as error:
        assert "--delimiter" in str(error) and not has_header
    else:
        assert found == rows
    assert pairs(path, **columns, delimiter=own) == rows


@pytest.mark.parametrize("ending", ["tsv", "txt"])
@pytest.mark.parametrize("own", ["comma", "semicolon", "bar"])
def test_other_delimiters_in_tsv_have_a_flag(tmp_path, ending, own):
    path = table(
        tmp_path / f"x.{ending}", DELIMITERS[own], [("text", "label"), ('"so" it,;|goes', "x")]
    )
    with pytest.raises(
        UserError, match=r"no column 'text' among .*separated by tab.*or --delimiter"
    ):
        pairs(path)
    assert pairs(path, delimiter=own) == [('"so" it,;|goes', "x")]


def test_quotes_of_tsv_stay(tmp_path):
    path = write(tmp_path / "x.tsv", 'text\tlabel\n"so\tx\n')
    assert pairs(path) == pairs(path, delimiter="tab") == [('"so', "x")]


# --- Columns ---

YEARS = "2019,2020\nso good,x\nbad,y\n"


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        (YEARS, dict(text="2019", label="2020"), [("so good", "x"), ("bad", "y")]),
        (YEARS, dict(text=0, label="2020"), [("so good", "x"), ("bad", "y")]),
        (YEARS, dict(text="0", label="1", header=True), [("so good", "x"), ("bad", "y")]),
        # A name comes before a number.
        ("1,0\ngood,x\n", dict(text="1", label="0", header=True), [("good", "x")]),
        ("1,0\ngood,x\n", dict(text="1", label="0", header=False), [("0", "1"), ("x", "good")]),
        ("1,0,text\nx,a,good\n", dict(text="text", label="1"), [("good", "x")]),
        # A label that is also the number of its column.
        ("good,1\nbad,0\n", dict(text="0", label="1"), [("good", "1"), ("bad", "0")]),
        ("1,good\n0,bad\n", dict(text="1", label="0"), [("good", "1"), ("bad", "0")]),
        (f"cafe\u0301,y\nso,{'x'}\n", dict(text="café", label="y"), [("so", "x")]),
        ("café,y\nso,x\n", dict(text="cafe\u0301", label="y"), [("so", "x")]),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_names_come_before_numbers(tmp_path, text, options, rows, ending):
    path = write(tmp_path / f"x.{ending}", text.replace(",", "\t") if ending == "tsv" else text)
    assert pairs(path, **options) == rows


def test_a_name_that_is_another_number_needs_header(tmp_path):
    path = write(tmp_path / "x.csv", "1,0\ngood,x\nbad,y\n")
    problem = (
        "'0' is the name of one column and the number of another: give --header yes or --header no"
    )
    assert_refused(lambda path: pairs(path, text="0", label="1"), path, problem)


def test_keys_of_json_may_have_another_form(tmp_path):
    path = write(tmp_path / "x.jsonl", '{"cafe\u0301": "so", "1": "x"}')
    assert pairs(path, text="café", label="1") == [("so", "x")]
    path = write(tmp_path / "y.jsonl", '{"cafe\u0301": "so", "café": "x"}')
    assert_refused(
        lambda path: pairs(path, text="café", label="1"), path, "the key 'café' occurs twice"
    )


@pytest.mark.parametrize("wanted", ["column 30x", "column 01x", "column 60x", "zzz", "600"])
@pytest.mark.parametrize("flag", ["text", "label"])
def test_columns_like_the_wanted_one_are_listed(tmp_path, wanted, flag):
    names = [f"column {i:02}" for i in range(1, 61)]
    path = write(tmp_path / "x.csv", ",".join(names) + "\n" + ",".join("a" * 60) + "\n")
    columns = {"text": names[0], "label": names[1]} | {flag: wanted}
    with pytest.raises(UserError) as caught:
        pairs(path, **columns)
    message = str(caught.value)
    assert f"no column '{wanted}' among" in message and f"--{flag}-column" in message
    assert wanted[:-1] in message.split("among")[1] or "column" not in wanted
    assert message.count("column ") >= 6 and "…" in message


def test_few_columns_are_listed_wholly(tmp_path):
    path = write(tmp_path / "x.csv", "id,the text,a;b,note,stars\n1,a,b,c,d\n")
    assert_refused(
        pairs, path, "no column 'text' among id, the text, 'a;b', note, stars (separated by comma)"
    )


# --- Rows that are left out ---


def as_table(ending):
    mark = "\t" if ending == "tsv" else ","
    return lambda *rows: "".join(f"{mark.join(row)}\n" for row in rows)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize(
    ("rows", "empty", "comments"),
    [
        ([("text", "label"), ("a", "x"), ("", ""), ("b", "y")], 1, 0),
        ([("", ""), ("", "", ""), ("text", "label"), ("a", "x"), ("b", "y")], 2, 0),
        ([("text", "label"), ("a", "x"), ("", "y"), (" ", "y"), ("<br />", "x"), ("b", "y")], 3, 0),
        ([("text", "label"), ("a", "x"), ("",), (" ",), ("b", "y"), ("",)], 0, 0),  # blank lines
        ([("# made by hand",), ("#",), ("text", "label"), ("a", "x"), ("b", "y")], 0, 2),
        ([("# made", " by", " hand"), ("text", "label"), ("a", "x"), ("b", "y")], 0, 1),
        ([("text", "label"), ("# part one",), ("a", "x"), ("# part two",), ("b", "y")], 0, 2),
        ([("#text", "text", "label"), ("1", "a", "x"), ("#2", "b", "y")], 0, 0),
    ],
)
def test_empty_texts_and_comments_are_counted(tmp_path, ending, rows, empty, comments):
    path = write(tmp_path / f"x.{ending}", as_table(ending)(*rows))
    notes = DataNotes()
    assert pairs(path, notes=notes) == [("a", "x"), ("b", "y")]
    told = "\n".join(notes.lines)
    assert (f"texts without words ({empty};" in told) == bool(empty)
    assert (f"begins with # ({comments};" in told or f"begin with # ({comments};" in told) == bool(
        comments
    )
    if empty or comments:
        with pytest.raises(
            UserError, match=r"line \d: (the text has no words|a comment).*--strict"
        ):
            pairs(path, notes=DataNotes(strict=True))
    else:
        assert not told and pairs(path, notes=DataNotes(strict=True))


def test_hash_tags_are_texts(tmp_path):
    rows = [("#good, really", "x"), ("#bad", "y")]
    for ending in ("csv", "tsv"):
        path = table(tmp_path / f"x.{ending}", "," if ending == "csv" else "\t", rows)
        assert pairs(path, text=0, label=1) == rows
    path = write(tmp_path / "y.csv", "text,label\na,x\n#good, really,x\n")
    assert_refused(pairs, path, "line 3: 3 columns, but the first line has 2")
