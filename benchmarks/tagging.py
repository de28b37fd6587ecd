"""Words per second of the taggers, in training and in `predict`, beside PyTorch with pytorch-crf.

    pip install -e ".[bench]"
    python -m benchmarks.tagging --data DIR

One process, candidates in turns. A turn is a pass over the first sentences of train: in training every batch
of them, with forward, backward, clipping and update; in predict from words to tags. The data is that of
`experiments.conll2003`, the network its preset.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.candidate import Candidate, Ready
from benchmarks.machine import describe, one_line
from benchmarks.training_step import trainer
from dynskip_jax.data.batches import Batch
from dynskip_jax.data.tagger_vocabulary import TaggerVocabulary
from dynskip_jax.data.tagging import TaggedSentence
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.experiments.build import make_fit_settings, make_learner
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.experiments.commands.tag import tag
from dynskip_jax.experiments.conll2003 import CoNLL2003
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.settings import resolve
from dynskip_jax.experiments.tagging import ReadCorpus
from dynskip_jax.settings import path_setting, setting

PEER = "PyTorch"


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of this benchmark."""

    data: str | None = path_setting(
        None, "Folder of CoNLL-2003; by default looked for as the experiment does."
    )
    dataset: str = setting("conll2003", "As of experiments.conll2003.")
    models: str = setting("lstm,dynamic:5", "Models, separated by commas.")
    preset: str = setting("small", "Of experiments.conll2003.")
    sentences: int = setting(3000, "How many sentences of train are read in a turn.", at_least=1)
    rounds: int = setting(7, "Turns of each candidate.", at_least=1)
    out: str | None = path_setting(None, "A JSON file for the figures.")


class _Few(CoNLL2003):
    """The experiment with only the first `sentences` training sentences, and with the full vocabulary."""

    sentences: int

    def load_data(self) -> ReadCorpus:
        """See `Experiment`."""
        data = super().load_data()
        kept = data.corpus.splits["train"][: self.sentences]
        corpus = dataclasses.replace(data.corpus, splits={**data.corpus.splits, "train": kept})
        return dataclasses.replace(data, corpus=corpus)


def candidates(experiment: CoNLL2003, models: Sequence[str], data: ReadCorpus) -> dict[str, list[Candidate]]:
    """Return the candidates for training and for prediction; PyTorch's fail if it is not installed."""
    found: dict[str, list[Candidate]] = {"training": [], "predict": []}
    for model in models:
        training, predicting = _ours(experiment, model, data)
        found["training"].append(training)
        found["predict"].append(predicting)
    for part, peer in zip(found, _peers(experiment, data), strict=True):
        found[part].append(peer)
    return found


def _ours(experiment: CoNLL2003, model: str, data: ReadCorpus) -> tuple[Candidate, Candidate]:
    spec = make_spec(model, experiment.settings)
    learner = make_learner(experiment, spec, data, data.vocabulary)
    fit = make_fit_settings(experiment, spec, learner)

    def train() -> Ready:
        state, update = trainer(learner, fit)

        def step() -> None:
            nonlocal state
            for index, batch in enumerate(learner.train_batches(0)):
                state = update(state, batch, index)
            jax.block_until_ready(state)

        return Ready(step)

    def predict() -> Ready:
        state, _ = trainer(learner, fit)
        params = jax.tree.map(lambda leaf: leaf[0], state.params)
        policy = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], learner.policy())

        def best(batch: Batch) -> np.ndarray:
            return np.asarray(learner.predict(params, batch, policy))

        return Ready(lambda: tag(best, *_read(data)))

    return Candidate(model, train), Candidate(model, predict)


def _peers(experiment: CoNLL2003, data: ReadCorpus) -> tuple[Candidate, Candidate]:
    """Return PyTorch's candidates; a missing package raises an error when they are prepared."""
    chosen = experiment.settings
    learner = make_learner(experiment, make_spec("lstm", chosen), data, data.vocabulary)

    def train() -> Ready:
        from benchmarks import torch_tagger

        update = torch_tagger.trainer(torch_tagger.BiLSTMCRF(chosen, data.vocabulary), chosen)

        def step() -> None:
            for batch in learner.train_batches(0):
                update(torch_tagger.of_one_seed(batch))

        return Ready(step)

    def predict() -> Ready:
        from benchmarks import torch_tagger

        network = torch_tagger.BiLSTMCRF(chosen, data.vocabulary)
        return Ready(lambda: tag(lambda batch: torch_tagger.predict(network, batch), *_read(data)))

    return Candidate(PEER, train), Candidate(PEER, predict)


def _read(data: ReadCorpus) -> tuple[TaggerVocabulary, Sequence[TaggedSentence]]:
    """Return the vocabulary and the sentences of train, the arguments of `tag`."""
    return data.vocabulary, data.corpus.splits["train"]


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.tagging", __doc__, Flags, sys.argv[1:])
    keep_freed_memory()
    models = flags.models.split(",")
    given = {"dataset": flags.dataset} | ({} if flags.data is None else {"data": flags.data})
    experiment = _Few(resolve(CoNLL2003.settings_type, CoNLL2003.presets, flags.preset, given).settings)
    experiment.sentences = flags.sentences
    data = experiment.load_data()
    read = sum(len(sentence.words) for sentence in data.corpus.splits["train"])
    console, found = Console(highlight=False), {}
    about = describe("default", with_torch=False)
    table = Table(
        title=f"{data.name}, preset {flags.preset}: words per second, {read:,} words a turn, "
        f"{flags.rounds} turns: median; and {PEER}'s time over ours, median (quartiles)",
        title_justify="left",
    )
    for heading in ("model", "training", "", "predict", ""):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    columns: dict[str, list[str]] = {name: [] for name in (*models, PEER)}
    for part, entries in candidates(experiment, models, data).items():
        with console.status(f"{part}: {', '.join(entry.name for entry in entries)}"):
            measured = measure.milliseconds(entries, flags.rounds, lambda: None)
        for name, why in measured.failed.items():
            console.print(f"{name}, {part}: {why}", style="yellow")
        found[part] = {name: (1e3 * read / values).tolist() for name, values in measured.values.items()}
        for name, cells in columns.items():
            values = measured.values.get(name)
            cells.append("" if values is None else f"{1e3 * read / np.median(values):,.0f}")
            peer = measured.values.get(PEER)
            both = values is not None and peer is not None and name != PEER
            cells.append(str(measure.ratio(peer, values)) if both else "")
    for name, cells in columns.items():
        table.add_row(name, *cells)
    console.print(table)
    console.print(one_line(about))
    if flags.out is not None:
        record = {"machine": about, "flags": dataclasses.asdict(flags), "words_per_second": found}
        Path(flags.out).parent.mkdir(parents=True, exist_ok=True)
        Path(flags.out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
