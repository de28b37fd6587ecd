"""Check source code as a corpus: tokens and their places, numbered names, and packages."""

import itertools
import unicodedata

import numpy as np
import pytest

from dynskip_jax.data.source_code import code_text, code_tokens, read_code
from dynskip_jax.data.vocabularies import CodeToken, CodeVocabulary, Vocabulary, code_vocabulary
from dynskip_jax.errors import UserError

PYTHON = """def area(r):  # of a circle
    if r:
        return 3.14159 * r ** 2

    print("a long text", 'short', b"\\x00")
"""
GO = """package a

/* no
 token */
func area(r float64) {
\treturn 3.14159 * r // π
}
var s = "a\\n b"
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.py",
            PYTHON,
            "def area ( r ) : <newline> <indent> if r : <newline> <indent> "
            "return <number> * r ** 2 <newline> <dedent> "
            "print ( <string> , 'short' , b\"\\x00\" ) <newline> <dedent>",
        ),
        ("a.go", GO, "package a func area ( r float64 ) { return <number> * r } var s = <string>"),
        ("a.h", "#include <string>\nint x = 1;", "# include <other> int x = 1 ;"),
    ],
)
def test_tokens_of_a_file_and_their_places(name, text, expected):
    tokens = list(code_tokens(name, text))
    assert [token.text for token in tokens] == expected.split()
    for token in tokens:
        in_file = text[token.start : token.stop]
        if token.text[0] != "<" or len(token.text) == 1:
            assert in_file == token.text
    names = {token.text for token in tokens if token.is_name}
    assert names <= {"area", "r", "print", "a", "s", "x"} and names & {"area", "x"}
    assert all(a.stop <= b.start for a, b in itertools.pairwise(tokens) if a.stop > a.start)


@pytest.mark.parametrize(
    ("name", "text", "expected", "names"),
    [
        ("Main.JAVA", "int x;", "int x ;", "x"),
        ("a.H", "#include <a.h>\nint class;", "# include <a.h> int class ;", "class"),  # C
        ("a.php", "<?php /** Doc */ $x;", "<?php $x ;", "$x"),
        ("a.py", "'Doc'", "'Doc' <newline>", ""),
        # Names with marks, in several scripts, and by NFKC.
        ("a.py", "ﬁle = file", "file = file <newline>", "file"),
        ("a.js", "नाम = 1", "नाम = 1", "नाम"),
    ],
)
def test_languages_comments_and_names(name, text, expected, names):
    tokens = list(code_tokens(name, text))
    assert [unicodedata.normalize("NFKC", token.text) for token in tokens] == [
        unicodedata.normalize("NFKC", word) for word in expected.split()
    ]
    assert {token.text for token in tokens if token.is_name} == {
        unicodedata.normalize("NFKC", word) for word in names.split()
    }


def test_text_is_decoded_as_its_language_says():
    assert code_text("a.py", b"# coding: latin-1\r\nx = '\xe9'\r") == "# coding: latin-1\nx = 'é'\n"
    assert code_text("a.c", b"\xef\xbb\xbfint x;") == "int x;"
    for name, content in (("a.py", b"x = '\xe9'"), ("a.c", b"\xff"), ("a.py", b"x\0y")):
        with pytest.raises((ValueError, SyntaxError)):
            code_text(name, content)


def names(*texts):
    return [CodeToken(text, 0, 0, text.isidentifier()) for text in texts]


def test_rare_names_are_numbered_in_each_file_by_first_appearance():
    vocabulary = code_vocabulary(names(*["self"] * 3, *["+"] * 4, "rare", "rare", "?"))
    found = vocabulary.number(names("self", "b", "+", "a", "b", "?", "rare"))
    assert found == ["self", "<name-0>", "+", "<name-1>", "<name-0>", "<other>", "<name-2>"]
    assert vocabulary.number(names("a"))[0] == "<name-0>"  # another file
    many = vocabulary.number(names(*(f"n{i}" for i in range(201)), "n0"))
    assert many[199:] == ["<name-199>", "<name-0>", "<name-0>"]
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary
    assert isinstance(vocabulary, CodeVocabulary) and vocabulary.tokens[0] == "<file>"
    groups = vocabulary.groups(np.arange(len(vocabulary)))
    are_names = np.array(vocabulary.tokens)[groups["names"]]
    assert set(are_names) == {"self", *(f"<name-{i}>" for i in range(200))}
    assert set(are_names) - set(np.array(vocabulary.tokens)[groups["new_names"]]) == {"self"}
    assert (
        len(code_vocabulary(names(*(f"n{i}" for i in range(900)), "x"), min_count=1, max_size=300))
        == 300
    )


def test_a_text_is_a_name_where_it_mostly_is_one():
    tokens = [
        *names(*["match"] * 4),
        *[CodeToken("match", 0, 0, False)] * 2,
        *[CodeToken("type", 0, 0)] * 3,
    ]
    vocabulary = code_vocabulary(tokens)
    is_name = vocabulary.groups(np.arange(len(vocabulary)))["names"]
    assert is_name[vocabulary.index["match"]] and not is_name[vocabulary.index["type"]]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with ten packages of two modules, each with an own name, three times."""
    for package in "abcdefghij":
        (tmp_path / package).mkdir()
        for module in "xy":
            text = f"import os\n{package}{module} = {package} = 1\n" + f"{package}\n" * 3
            (tmp_path / package / f"{module}.py").write_text(text)
    return tmp_path


def packages_of(corpus):
    """Return each split's packages, by their names in the vocabulary or in the split's texts."""
    words = {split: set(corpus.vocabulary.decode(ids)) for split, ids in corpus.splits.items()}
    return {split: of & set("abcdefghij") for split, of in words.items()}


def files_of(corpus):
    return {split: int(np.sum(ids == 0)) for split, ids in corpus.splits.items()}


def test_splits_share_no_package_and_every_file_ends_with_its_mark(folder):
    corpus, lines = read_code(folder, 1000)
    assert sum(files_of(corpus).values()) == 20 and all(
        count % 2 == 0 for count in files_of(corpus).values()
    )
    assert lines[0] == "files: train {train}, dev {dev}, test {test}".format(**files_of(corpus))
    # Names of packages in dev and test are not in train, so they are numbered there.
    assert len(packages_of(corpus)["train"]) == files_of(corpus)["train"] // 2
    for split in ("dev", "test"):
        assert not packages_of(corpus)[split] and corpus.splits[split][-1] == 0
        first = corpus.vocabulary.decode(corpus.splits[split])
        assert first[:5] == ["import", "os", "<newline>", "<name-0>", "="]
    again, _ = read_code(folder, 1000)
    assert again.fingerprint == corpus.fingerprint
    capped, _ = read_code(folder, 150)
    assert sum(files_of(capped).values()) < 20 and min(files_of(capped).values()) > 0


def test_what_is_no_source_of_this_folder_is_left_out(folder):
    expected, _ = read_code(folder, 1000)
    text = "zebra = 1\n" * 9
    for path in (
        "node_modules/m.js",
        ".git/h.py",
        "venv/lib/v.py",
        "a/__pycache__/p.py",
        "a/notes.txt",
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "venv" / "pyvenv.cfg").touch()
    (folder / "large.py").write_text("x = 1\n" * 200_000)
    copied = (folder / "a" / "x.py").read_bytes()
    (folder / "j" / "copy.py").write_bytes(copied)
    (folder / "j" / "ends.py").write_bytes(b"# Of Windows\r\n" + copied.replace(b"\n", b"\r\n"))
    found, _ = read_code(folder, 1000)
    assert "zebra" not in found.vocabulary.index
    assert sum(files_of(found).values()) == sum(files_of(expected).values())


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("a/indent.py", b"if x:\n  y\n z\n"),
        ("latin.c", b"int \xe9;"),
        ("codec.py", b"# coding: rot13\nk = 1\n"),
        ("half.py", b"# coding: unicode_escape\nx = '\\ud800'\n"),
        ("raises.lua", b"x = 1"),
        ("prose.java", b"some words " * 4_000),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_read(
    path, content, folder, monkeypatch
):
    def fail(*_):
        raise RecursionError

    monkeypatch.setattr("pygments.lexers.scripting.LuaLexer.get_tokens_unprocessed", fail)
    (folder / path).write_bytes(content)
    corpus, lines = read_code(folder, 1000)
    assert sum(files_of(corpus).values()) == 20
    assert lines[-1] == f"cannot be read, and left out: 1 ({path})"


@pytest.mark.parametrize("sizes", [(5, 5, 5), (1, 1, 90), (300, 2, 2), (2, 300, 2)])
@pytest.mark.parametrize("under", ["", "src/"])
def test_three_files_are_enough(sizes, under, tmp_path):
    (tmp_path / "src").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / f"{under}file{number}.py").write_text(f"a{number} = 1\n" * size)
    corpus, _ = read_code(tmp_path, 100_000)
    assert files_of(corpus) == {"train": 1, "dev": 1, "test": 1}
    assert corpus.train.size == max(corpus.sizes[split] for split in corpus.splits)


@pytest.mark.parametrize(
    "texts", [[], ["x = 1"], ["x = 1", "y = 1"], ["x = 1"] * 5, ["x = 1", "y = 1", "("]]
)
def test_too_few_files_are_refused_in_one_line(texts, tmp_path):
    for number, text in enumerate(texts):
        (tmp_path / f"file{number}.py").write_text(text)
    with pytest.raises(UserError, match="files of source code that can be read") as error:
        read_code(tmp_path, 1000)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="check its name and permissions"):
        read_code(tmp_path / "absent", 1000)


def test_the_standard_library_is_read_by_default():
    corpus, lines = read_code(None, 20_000)
    assert corpus.name.startswith("python3.") and sum(map(len, corpus.splits.values())) >= 20_000
    assert min(files_of(corpus).values()) > 0 and lines
