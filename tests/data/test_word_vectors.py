"""Check word vectors from hand-written files: which are read, and the errors of broken lines."""

import gzip

import numpy as np
import pytest

from dynskip_jax.data.word_vectors import read_word_vectors, vectors_of
from dynskip_jax.errors import UserError

GLOVE = "the 0.5 -1 2\n. . 1 2 3\ncat 1e-3 0 -0.25\nthe 9 9 9\n\n1 7 8 9\n"
WORD2VEC = "3 3\nthe 0.5 -1 2 \ncat 0 0 1 \nDog 1 1 1 \n"


def written(tmp_path, text, name="vectors.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_glove(tmp_path):
    found = read_word_vectors(written(tmp_path, GLOVE), {"the", "cat", ". .", "1", "dog"}, 3)
    assert found.keys() == {"the", "cat", ". .", "1"}
    np.testing.assert_array_equal(found["the"], np.float32([0.5, -1, 2]))  # the first of two
    np.testing.assert_array_equal(found["cat"], np.float32([1e-3, 0, -0.25]))
    np.testing.assert_array_equal(found[". ."], [1, 2, 3])
    np.testing.assert_array_equal(found["1"], [7, 8, 9])


@pytest.mark.parametrize("packed", [False, True])
def test_word2vec_has_a_line_of_sizes(tmp_path, packed):
    data = gzip.compress(WORD2VEC.encode()) if packed else WORD2VEC
    path = written(tmp_path, data, "vectors.txt.gz" if packed else "vectors.txt")
    assert read_word_vectors(path, {"the", "Dog", "3"}, 3).keys() == {"the", "Dog"}


def test_the_lower_case_form_stands_in(tmp_path):
    read = read_word_vectors(written(tmp_path, WORD2VEC), {"the", "cat", "Dog"}, 3)
    vectors = vectors_of(["Cat", "Dog", "dog", "THE", "cow"], read, 3)
    assert vectors.found.tolist() == [True, True, False, True, False]
    np.testing.assert_array_equal(
        vectors.table, np.float32([[0, 0, 1], [1, 1, 1], [0, 0, 0], [0.5, -1, 2], [0, 0, 0]])
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("the 1 2\n", "line 1: 2 numbers after the word, but 3 are wanted"),
        ("the 1 2 3 4\n", "line 1: 4 numbers after the word, but 3 are wanted"),
        ("3 50\nthe 1 2 3\n", "line 1: vectors of 50 numbers, but 3 are wanted"),
        ("cow 1 2 3\nthe 1 2\n", "line 2: 2 numbers after the word, but 3 are wanted on each line"),
        ("cow 1 2 3\nthe 1 two 3\n", "line 2: the vector of 'the' is no list of numbers"),
        ("cow 1 2 3\nthe 1 nan 3\n", "line 2: the vector of 'the' is not finite"),
        (b"cow 1 2 3\n\xff\xfe 1 2 3\n", r"is not UTF-8 text \(line 2, byte offset 10\)"),
        ("\n\n", "holds no word vector"),
    ],
)
def test_broken_lines_are_named(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=message) as caught:
        read_word_vectors(path, {"the"}, 3)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="is not there"):
        read_word_vectors(tmp_path / "none.txt", {"the"}, 3)
    path = written(tmp_path, gzip.compress(WORD2VEC.encode() * 100)[:60], "cut.txt.gz")
    with pytest.raises(UserError, match="damaged gzip"):
        read_word_vectors(path, {"the"}, 3)


SPACES = "to infinity 1 2 3\n10 000 7 8 9\nthe 0.5 -1 2\n. . . 4 5 6\n"


@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_words_with_spaces_that_nobody_asks_for(tmp_path, header):
    found = read_word_vectors(written(tmp_path, header + SPACES), {"the", "10 000"}, 3)
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "the": [0.5, -1, 2],
        "10 000": [7, 8, 9],
    }


@pytest.mark.parametrize("change", ["\ufeff{}", " {}", "{}", "\ufeff\t{}"])
@pytest.mark.parametrize("separator", [" ", "  ", "\t", " \t "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \n"])
def test_marks_spaces_and_line_ends_make_no_difference(tmp_path, change, separator, end):
    lines = ["the 0.5 -1 2", "cat 0 0 1"]
    text = "".join(change.format(line) + end for line in lines).replace(" ", separator)
    text = text[0] + text[1:].replace("\ufeff", "")
    found = read_word_vectors(written(tmp_path, text), {"the", "cat"}, 3)
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "the": [0.5, -1, 2],
        "cat": [0, 0, 1],
    }


def test_a_file_that_ends_too_early(tmp_path):
    cut = WORD2VEC.replace("Dog 1 1 1 \n", "")
    with pytest.raises(UserError, match="holds 2 vectors, but its first line says 3: it is cut"):
        read_word_vectors(written(tmp_path, cut), {"the"}, 3)


@pytest.mark.parametrize("text", ["the 1e99 0 0\n", "the -1e39 0 0\n", "the inf 0 0\n"])
def test_numbers_too_large_for_32_bits_are_refused_without_a_warning(tmp_path, text):
    with pytest.raises(UserError, match="line 1: the vector of 'the' is not finite in 32 bits"):
        read_word_vectors(written(tmp_path, text), {"the"}, 3)


def test_vectors_of_one_number(tmp_path):
    assert read_word_vectors(written(tmp_path, "7 9\nthe 1\n"), {"7"}, 1)["7"].tolist() == [9]
    assert read_word_vectors(written(tmp_path, "1 1\nthe 1\n"), {"the", "1"}, 1).keys() == {"the"}


def test_messages_stay_short(tmp_path):
    word = "x" * 5_000_000
    for text in (f"{word} 1 {word} 3\n", f"{word} 1 nan 3\n", f"a 1 2 3\n{word} 1\n", f"{word}\n"):
        with pytest.raises(UserError) as caught:
            read_word_vectors(written(tmp_path, text), {word}, 3)
        assert len(str(caught.value)) < 300
