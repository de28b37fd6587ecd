"""Check that word vectors made from texts are reproducible and can be read, and that errors are one
line.
"""

import numpy as np
import pytest
from commands import assert_user_error, execute, succeed, tool

from dynskip_jax.data.word_vectors import read_word_vectors

pytest.importorskip("gensim", reason="word vectors are made by gensim, which is not installed")

# Words of two kinds, which never occur in the same line.
TEXT = "\n".join(
    ["the cat saw a dog , a dog saw the cat .", "In 1996 and 1997 he paid 10 and 20"] * 40
)
MAKE = tool("word_vectors")


def test_words_in_like_company_are_alike(tmp_path):
    text, first, second = (tmp_path / name for name in ("text.txt", "one.txt", "two.txt"))
    text.write_text(TEXT)
    for output in (first, second):
        outcome = succeed(MAKE, "--output", output, "--text", text, "--width", 8, "--epochs", 30)
    assert "text.txt: 840 words" in outcome.out
    assert first.read_bytes() == second.read_bytes()
    vectors = read_word_vectors(first, {"cat", "dog", "9999", "99", "in", "1996", "In"}, 8)
    # In lower case, digits replaced by 9.
    assert vectors.keys() == {"cat", "dog", "9999", "99", "in"}

    def alike(one, other):
        one, other = vectors[one], vectors[other]
        return one @ other / np.sqrt((one @ one) * (other @ other))

    assert alike("cat", "dog") > alike("cat", "99") and alike("9999", "99") > alike("dog", "99")


def test_what_is_wrong_is_said_in_one_line(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b")
    for output, flags, message in (
        (text, ("--text", text), "exists: remove it"),
        (tmp_path / "v.txt", (), "no text found"),
        (tmp_path / "v.txt", ("--text", text), "no word occurs 3 times"),
    ):
        assert_user_error(execute(MAKE, "--output", output, *flags), message)
    assert text.read_text() == "a b" and not (tmp_path / "v.txt").exists()
