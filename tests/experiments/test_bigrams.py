"""Check the baseline of words and pairs of words on a few reviews that one pair of words tells apart."""

import pytest
from commands import succeed

from dynskip_jax.experiment import find_experiment


def test_a_pair_of_words_is_enough(tmp_path):
    pytest.importorskip("sklearn")
    for split in ("train", "test"):
        for kind, text in (("neg", "not good , it is bad"), ("pos", "not bad , it is good")):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(20):
                (tmp_path / split / kind / f"{i}_1.txt").write_text(text)
    outcome = succeed(find_experiment("imdb"), "bigrams", "--data", tmp_path)
    assert outcome.out.count("100.00%") == 2  # on dev and on test
