"""Provide small data sets, and finished runs that are shared by all tests that only read them."""

import dataclasses
import hashlib

import numpy as np
import pytest
import quick
from commands import PTB, SMALL_PTB, Finished, finished_run

from dynskip_jax.data import agreement, number_prediction, recall, upstream
from dynskip_jax.runs import load as trained

TWO_SEEDS = ("--seeds", 2, "--epochs", 2, *SMALL_PTB)


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory):
    """Write a text corpus called `letters`: 360 training tokens, 8 words and <eos>."""
    folder = tmp_path_factory.mktemp("data") / "letters"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, lines in (("train", 72), ("valid", 8), ("test", 8)):
        words = rng.choice(list("abcdefgh"), size=(lines, 4))
        (folder / f"{split}.txt").write_text("".join(f"{' '.join(row)}\n" for row in words))
    return folder


@pytest.fixture(scope="session")
def small_generated_data():
    """Limit dev and test of generated data to 20 examples."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (agreement, number_prediction, recall):
            patch.setitem(module.DEFAULT_SIZES, "dev", 20)
            patch.setitem(module.DEFAULT_SIZES, "test", 20)
        yield


@pytest.fixture(scope="session", autouse=True)
def read_once():
    """Read each finished run once for all commands, which then share its compiled programs.

    A run is identified by the bytes of its files, plots excepted. A copy that a test changes is
    read again.
    """
    read, kept = trained._load, {}

    def load(finished, experiment, name):
        run = finished.run
        files = sorted(
            path for path in run.path.rglob("*") if path.is_file() and path.parent.name != "plots"
        )
        about = [(str(path.relative_to(run.path)), path.read_bytes()) for path in files]
        key = name, hashlib.sha256(repr(about).encode()).digest()
        if key not in kept:
            kept[key] = read(finished, experiment, name)
        return dataclasses.replace(kept[key], run=run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "_load", load)
        yield


@pytest.fixture(autouse=True)
def no_data_found(monkeypatch, tmp_path_factory):
    """Hide this machine's data folders and its network from each test."""
    monkeypatch.delenv("DYNSKIP_DATA_DIR", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.mktemp("tfds")))
    monkeypatch.setattr(upstream, "is_reachable", lambda url: False)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Change to an empty folder and return it; commands without an explicit path write there."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def compared_ptb(corpus_folder, tmp_path_factory):
    """Return a finished comparison of two models of `letters`: two seeds each, two epochs."""
    folder = tmp_path_factory.mktemp("ptb") / "compared"
    arguments = ("--data", corpus_folder, "--compare", "lstm,dynamic:3", *TWO_SEEDS)
    return finished_run(PTB, folder, *arguments)


@pytest.fixture(scope="session")
def finished_ptb(corpus_folder, compared_ptb):
    """Return the finished run of a plain LSTM of `letters` in this comparison."""
    arguments = ("--data", corpus_folder, "--model", "lstm", *TWO_SEEDS)
    return Finished(compared_ptb.folder / "lstm", arguments, compared_ptb.outcome)


@pytest.fixture(scope="session")
def finished_quick(tmp_path_factory):
    """Return a finished run of one model that compiles in milliseconds: two seeds, two epochs."""
    folder = tmp_path_factory.mktemp("quick") / "run"
    arguments = ("--seeds", 2, "--epochs", 2, "--batch-size", 20, "--devices", 1)
    return finished_run(quick.Quick, folder, *arguments)


@pytest.fixture(scope="session")
def swept_quick(tmp_path_factory):
    """Return a finished comparison and sweep of two models that compile in milliseconds: two
    seeds.
    """
    folder = tmp_path_factory.mktemp("quick") / "swept"
    arguments = (
        "--compare",
        "lstm,fixed:2",
        "--learning-rate",
        "0.001,0.01",
        "--seeds",
        2,
        "--devices",
        1,
    )
    return finished_run(quick.Quick, folder, *arguments)
