"""Runs experiments' command lines in this process, on data small enough for a test."""

import contextlib
import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from dynskip_jax.data import NumberPredictionData, ptb
from dynskip_jax.data.number_prediction import check_length, generate_splits
from experiments import number_prediction_experiment
from experiments.cli import run_main


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


def execute(main: Callable[[], None], *arguments: object) -> Outcome:
    """What a command line does, as the shell would see it."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiment", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run_main(main)
            except SystemExit as stop:
                status = stop.code or 0
    return Outcome(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def command():
    return execute


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory):
    """A text corpus called `letters`: 360 tokens to train on, 8 words and <eos>."""
    folder = tmp_path_factory.mktemp("data") / "letters"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, lines in (("train", 60), ("valid", 9), ("test", 7)):
        words = rng.choice(list("abcdefgh"), size=(lines, 5))
        (folder / f"{split}.txt").write_text("".join(f"{' '.join(row)}\n" for row in words))
    return folder


@pytest.fixture(scope="session")
def small_number_prediction():
    """The data sets of number prediction with 60 examples to train on, and nothing kept in any cache."""

    def load(length, *, data=None, num_train=60):
        check_length(length)
        sizes = {"train": min(num_train, 60), "dev": 20, "test": 30}
        return NumberPredictionData(
            f"number_prediction/length_{length}", generate_splits(length, 0, sizes), "made for a test"
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_prediction_experiment, "load_number_prediction", load)
        yield


@pytest.fixture(autouse=True)
def no_data_found(monkeypatch, tmp_path_factory):
    """Neither this machine's data folders nor its network."""
    monkeypatch.delenv("DYNSKIP_DATA_DIR", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.mktemp("tfds")))
    monkeypatch.setattr(ptb, "is_reachable", lambda url: False)
