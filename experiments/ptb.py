"""Penn Treebank language models: Gui et al. (2019), Table 3.

    python -m experiments.ptb --data DIR --preset small --compare lstm,dynamic:5
    python -m experiments.ptb explain --run-dir DIR --text "the company said it will buy"
    python -m experiments.ptb generate --run-dir DIR --words 100
    python -m experiments.ptb evaluate --run-dir DIR --data DIR --cache 500

Presets: `small` (2 x 200, the default on a CPU; less than an hour on two cores for these two models),
`sketch` (the same in half the time, for sweeps), `paper` (2 x 650, the default on a GPU or TPU), `medium`
(the same, its agent trained as in `small`), `released` (as the authors' code does it); words read by their
characters: `charlm` (Kim et al. 2016, large), `charlm_small`; the recipe of Merity et al. (2018): `awd`,
`awd_small`. Models: lstm, fixed:k, attention:k, dynamic:k.

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/ptb, in the TFDS cache and at its upstream
address; with none of them the model trains on an embedded corpus, a matter of minutes. `explain` shows which
earlier word the agent connects each word of a text to, `generate` writes text, `evaluate` measures
perplexity with a neural cache or by dynamic evaluation; they read a finished run folder. RESULTS.md has
what came out.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.data import find_language_corpus
from dynskip_jax.errors import UserError
from dynskip_jax.runs.trained import finished_runs, selected_params
from dynskip_jax.tasks.language_modelling import LanguageModelling
from dynskip_jax.training.asgd import non_monotone_trigger
from dynskip_jax.training.loop import FitResult, FitSettings
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.schedule import decay_after, decay_on_plateau
from dynskip_jax.training.step import evaluation_keys
from experiments.cli import devices_line, join, models, parallel, parse, run_main, silent
from experiments.experiment import metrics_in_every_mode, run
from experiments.ptb_evaluate import evaluate
from experiments.ptb_runs import VOCABULARY, vocabulary_file
from experiments.ptb_settings import PRESETS, Flags, Settings
from experiments.ptb_text import explain, write
from experiments.settings import resolve

DEFAULT_MODEL = "dynamic:5"

# Dev and test perplexities of Gui et al. (2019), Table 3, averages of ten runs; and what Merity et al. (2018)
# report for their recipe.
PUBLISHED = {
    "words": {
        "lstm": ("paper: Regularized LSTM", 86.2, 82.7),
        "fixed:3": ("paper: fixed skip 3", 85.3, 81.5),
        "fixed:5": ("paper: fixed skip 5", 86.2, 82.0),
        "attention:5": ("paper: attention", 85.1, 81.4),
        "dynamic:5": ("paper: dynamic skip, λ=1, K=5", 82.5, 78.5),
    },
    "characters": {
        "lstm": ("paper: CharLM", 82.0, 78.9),
        "fixed:3": ("paper: CharLM, fixed skip 3", 83.6, 80.2),
        "fixed:5": ("paper: CharLM, fixed skip 5", 84.9, 80.9),
        "attention:5": ("paper: CharLM with attention", 82.2, 79.0),
        "dynamic:5": ("paper: CharLM, dynamic skip, λ=1, K=5", 79.9, 76.5),
    },
    "awd": {"lstm": ("Merity et al. (2018): AWD-LSTM", 60.0, 57.3)},
}
PUBLISHED_SIZES = {"words": (2, 650), "characters": (2, 650), "awd": (3, 1150)}  # layers and their units
COMMANDS = {"explain": explain, "generate": write, "evaluate": evaluate}  # beside training
EVALUATION_SAMPLES = 10  # predictions of a token that are averaged


class PTB:
    """See `experiments.experiment.Experiment`."""

    name = "ptb"
    columns: ClassVar = {
        "dev_perplexity": ("dev perplexity", ".2f"),
        "test_perplexity": ("test perplexity", ".2f"),
        "test_perplexity_sampled": ("test, sampled", ".2f"),
        "test_perplexity_averaged": ("test, averaged", ".2f"),
    }
    curves = ("dev_perplexity",)

    def __init__(self, corpus, models: tuple[str, ...], settings: Settings):
        self.corpus = corpus
        self.models = models
        self.settings = settings
        self.dataset = {
            "name": corpus.name,
            "sizes": corpus.sizes,
            "fingerprint": corpus.fingerprint,
            "source": corpus.source,
        }
        self.skips = {model: settings.skip(model) for model in models}
        self.note = self._note()

    def config(self, model: str) -> dict[str, Any]:
        """See `Experiment`."""
        corpus = {"name": self.corpus.name, "fingerprint": self.corpus.fingerprint}
        return {
            "experiment": self.name,
            "model": model,
            "dataset": corpus,
            **dataclasses.asdict(self.settings),
        }

    def files(self, model: str) -> dict[str, str]:
        """The vocabulary, with which a run folder can be used without the corpus."""
        return {VOCABULARY: vocabulary_file(self.corpus.vocabulary)}

    def values(self, model: str) -> Sequence[dict[str, Any]]:
        """See `Experiment`."""
        return self.settings.values(model)

    def build(self, model: str) -> tuple[LanguageModelling, FitSettings]:
        """See `Experiment`."""
        s = self.settings
        task = LanguageModelling(self.corpus, s.task_settings(model))
        if s.plateau is not None:
            schedule = decay_on_plateau(s.learning_rate, 1 / s.decay, threshold=s.plateau, floor=0.005)
        else:
            schedule = decay_after(s.learning_rate, 1 / s.decay, s.decay_after)
        fit_settings = FitSettings(
            seeds=s.all_seeds(model),
            epochs=s.epochs,
            optimizer=make_optimizer(
                "sgd",
                clip=s.clip,
                weight_decay=s.weight_decay,
                # Attention is a part of the network like any other: its MLP is trained as that is.
                agent_learning_rate=s.agent_learning_rate if s.skip(model).is_stochastic else None,
                learning_rate=s.learning_rate,
            ),
            learning_rate=schedule,
            average=self._averaging(),
            start=None if s.start_from is None else self._trained(model, task),
            patience=s.patience,
        )
        return task, fit_settings

    def _trained(self, model: str, task: LanguageModelling) -> Any:
        """The parameters of an earlier run of a model, of the same seeds."""
        runs = finished_runs(self.settings.start_from)
        if model not in runs:
            raise UserError(f"--start-from {self.settings.start_from} holds no finished run of {model}")
        like = jax.eval_shape(task.init, jax.random.key(0))
        return selected_params(runs[model], like, len(self.settings.all_seeds(model)))

    def _averaging(self) -> Callable[[np.ndarray], np.ndarray] | None:
        s = self.settings
        if s.average == "none":
            return None
        if s.average == "always":
            return lambda history: np.ones(history.shape[1], bool)
        return partial(non_monotone_trigger, n=s.average_interval)

    def final_metrics(self, model: str, task: LanguageModelling, result: FitResult) -> dict[str, np.ndarray]:
        """One stream per split: no token without its past. Agents are run in every mode."""
        keys = evaluation_keys(self.settings.all_seeds(model))
        return metrics_in_every_mode(
            lambda split, **how: task.evaluate(result.params, split, keys, batch_size=1, **how),
            self.settings.evaluation_mode,
            is_stochastic=self.skips[model].is_stochastic,
            samples=EVALUATION_SAMPLES,
        )

    def draw(self, model: str, task: LanguageModelling, result: FitResult, folder: Path, member: int) -> None:
        """Which k the agent chooses at the corpus's most frequent words."""
        skip = self.skips[model]
        if not skip.has_agent:
            return
        seeds = self.settings.all_seeds(model)
        keys = evaluation_keys(seeds)
        tokens, chosen = task.trace(result.params, "dev", keys, layer=-1)
        frequent = np.argsort(-np.bincount(tokens), kind="stable")[:20]
        counts = np.zeros((len(frequent), skip.max_skip), np.int64)
        for row, word in enumerate(frequent):
            np.add.at(counts[row], chosen[member][tokens == word] - 1, 1)
        plots.action_distribution(
            counts,
            folder / "skips_by_word.png",
            f"{model}: how far back the agent reaches after each word",
            note=f"{self.corpus.name}, dev, greedy, the 20 most frequent words, seed {seeds[member]}",
            rows=[self.corpus.vocabulary.tokens[word] for word in frequent],
        )

    def _note(self) -> str:
        """What a table of this run must say."""
        if self.corpus.name != "ptb":
            return f"Perplexities on {self.corpus.name}: not comparable with any published on PTB."
        own, theirs = (self.settings.num_layers, self.settings.features), PUBLISHED_SIZES[self._kind]
        if own == theirs or not self.published():
            return ""
        sizes = ["{} x {}".format(*size) for size in (own, theirs)]
        return f"The models of this run have {sizes[0]} units, published ones {sizes[1]}: not comparable."

    @property
    def _kind(self) -> str:
        return "awd" if self.settings.average != "none" else self.settings.embedding

    def published(self) -> Sequence[tuple[str, dict[str, float]]]:
        """The paper's rows, for its corpus alone."""
        if self.corpus.name != "ptb":
            return []
        rows = [PUBLISHED[self._kind][model] for model in self.models if model in PUBLISHED[self._kind]]
        return [(name, {"dev_perplexity": dev, "test_perplexity": test}) for name, dev, test in rows]


def main(announce: Callable[[str], None] = print) -> None:
    """Runs the command line."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        COMMANDS[sys.argv[1]](sys.argv[2:])
        return
    flags = parse(Flags, PTB.name, __doc__)
    names = models(flags, DEFAULT_MODEL)
    with join(flags) as processes:
        announce = announce if processes.first else silent
        backend = jax.default_backend()
        settings = resolve(flags, Settings, PRESETS, "small" if backend == "cpu" else "paper")
        devices = parallel(flags, settings, names, processes)
        corpus = find_language_corpus(flags.data, flags.dataset)
        experiment = PTB(corpus, names, settings)
        sizes = ", ".join(f"{name} {size:,}" for name, size in corpus.sizes.items())
        announce(f"data: {corpus.name} from {corpus.source} ({sizes})")
        chosen = "as asked" if flags.preset else f"the default on {backend}"
        announce(f"preset: {settings.preset} ({chosen}); {devices_line(devices)}")
        run(experiment, flags.run_dir, parallel=devices, announce=announce)


if __name__ == "__main__":
    run_main(main)
