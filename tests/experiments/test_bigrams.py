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
    rows = [line.split("│")[1:-1] for line in outcome.out.splitlines() if "100.00%" in line]
    assert [[cell.strip() for cell in row[:3]] for row in rows] == [
        ["train", "100.00%", "100.00%"],
        ["train and dev", "", "100.00%"],
    ]
