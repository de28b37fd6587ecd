"""Check word vectors from hand-written files: which are read, and the errors of broken lines."""

import numpy as np
import pytest
from written import assert_refused, write

from dynskip_jax.data.dataset import Dataset
from dynskip_jax.data.word_vectors import read_word_vectors, vector_width
from dynskip_jax.experiments.vectors import with_vectors

GLOVE = "the 0.5 -1 2\n. . 1 2 3\ncat 1e-3 0 -0.25\nthe 9 9 9\n\n1 7 8 9\nof 1 2 3\n"
WORD2VEC = "3 3\nthe 0.5 -1 2 \ncat 0 0 1 \nDog 1 1 1 \n"
SPACES = "to infinity 1 2 3\n10 000 7 8 9\nthe 0.5 -1 2\n. . . 4 5 6\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GLOVE, {"the": [0.5, -1, 2], "cat": [1e-3, 0, -0.25], ". .": [1, 2, 3], "1": [7, 8, 9]}),
        (WORD2VEC, {"the": [0.5, -1, 2], "Dog": [1, 1, 1]}),
        (SPACES, {"the": [0.5, -1, 2], "10 000": [7, 8, 9]}),
        ("4 3\n" + SPACES, {"the": [0.5, -1, 2], "10 000": [7, 8, 9]}),
        ("\ufeff\tthe\t 0.5  -1\t2\r\rcat 0 0 1", {"the": [0.5, -1, 2], "cat": [0, 0, 1]}),
    ],
)
@pytest.mark.parametrize("name", ["v.txt", "v.gz"])
def test_formats(tmp_path, text, words, name):
    path = write(tmp_path / name, text)
    found = read_word_vectors(path, {*words, "absent"}, 3)
    assert found.keys() == words.keys() and vector_width(path) == 3
    for word, numbers in words.items():
        np.testing.assert_array_equal(found[word], np.float32(numbers))


def test_the_lower_case_form_stands_in(tmp_path):
    read = read_word_vectors(write(tmp_path / "v", WORD2VEC), {"the", "cat", "Dog"}, 3)
    data = Dataset("x", {}, "content", "here", None)
    vectors = with_vectors(data, tmp_path / "v", ["Cat", "Dog", "dog", "THE"], read, 3).vectors
    assert vectors.found.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(
        vectors.table, np.float32([[0, 0, 1], [1, 1, 1], [0, 0, 0], [0.5, -1, 2]])
    )


COW = "cow 1 2 3\n" * 3
LONG = "x" * 5_000_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("the 1 2\n", "has vectors of 2 numbers, but the model's embeddings have 3: give"),
        ("3 50\nthe" + " 1" * 50, "embeddings have 3: give --embedding-features 50"),
        (COW + "the 1 two 3\n", "line 4: the vector of 'the': could not convert"),
        ("\n\n", "has no numbers in its first line"),
        (f"{COW}{LONG} 1 {LONG} 3\n", "line 4: the vector of 'xxx"),
    ],
)
def test_broken_files_are_named(tmp_path, text, problem):
    read = lambda path: read_word_vectors(path, {"the", LONG}, 3)
    assert_refused(read, write(tmp_path / "vectors.txt", text), problem)
