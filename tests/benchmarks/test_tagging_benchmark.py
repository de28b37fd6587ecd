"""Check that the taggers' benchmark reads the experiment's data, and that its PyTorch tagger learns."""

import json
import sys

import numpy as np
import pytest

from benchmarks import tagging
from dynskip_jax.experiments.build import make_learner
from dynskip_jax.experiments.conll2003 import CoNLL2003
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.settings import resolve

SENTENCES = ["EU/I-ORG rejects/O", "Peter/I-PER left/O London/I-LOC", "it/O rained/O", "Rome/I-LOC won/O"]
SMALL = dict(features=4, embedding_features=4, char_features=3, char_outputs=4, batch_size=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ner")
    words = [[pair.split("/") for pair in line.split()] for line in SENTENCES]
    text = "\n".join("".join(f"{word} NN I-NP {tag}\n" for word, tag in line) for line in words)
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (path / name).write_text(text)
    return path


def experiment_of(folder, sentences):
    given = {"data": str(folder), **SMALL}
    experiment = tagging._Few(resolve(CoNLL2003.settings_type, CoNLL2003.presets, "small", given).settings)
    experiment.sentences = sentences
    return experiment


def test_a_turn_reads_the_first_sentences_of_train(folder):
    data = experiment_of(folder, 2).load_data()
    assert [list(sentence.words) for sentence in data.corpus.splits["train"]] == [
        ["EU", "rejects"],
        ["Peter", "left", "London"],
    ]
    assert data.vocabulary.knows("rained")  # occurs only in a later sentence


@pytest.mark.slow
def test_command_line(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "figures.json"
    arguments = ["--data", folder, "--models", "lstm", "--sentences", 3, "--rounds", 2, "--out", out]
    monkeypatch.setattr(sys, "argv", ["tagging", *map(str, arguments)])
    tagging.main()
    printed = " ".join(capsys.readouterr().out.split())  # without line breaks
    assert "words per second" in printed and "lstm" in printed
    found = json.loads(out.read_text())["words_per_second"]
    for part in ("training", "predict"):
        assert len(found[part]["lstm"]) == 2 and min(found[part]["lstm"]) > 0


def test_the_peer_learns(folder):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("torchcrf", reason="pytorch-crf is not installed")
    from benchmarks import torch_tagger

    experiment = experiment_of(folder, 4)
    data = experiment.load_data()
    learner = make_learner(experiment, make_spec("lstm", experiment.settings), data, data.vocabulary)
    torch.manual_seed(0)
    network = torch_tagger.BiLSTMCRF(experiment.settings, data.vocabulary)
    update = torch_tagger.trainer(network, experiment.settings)
    for _ in range(300):
        for batch in learner.train_batches(0):
            update(torch_tagger.of_one_seed(batch))
    for batch in learner.train_batches(0):
        rows = torch_tagger.of_one_seed(batch)
        for tags, length, found in zip(
            rows.targets, rows.seq_lengths, torch_tagger.predict(network, rows), strict=True
        ):
            np.testing.assert_array_equal(found, tags[:length])
