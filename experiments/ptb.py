"""Penn Treebank language models: Gui et al. (2019), Table 3.

    python -m experiments.ptb --data DIR --preset small --compare lstm,dynamic:5

Presets: `small` (2 x 200, the default on a CPU; about an hour on two cores for these two models), `paper`
(2 x 650, the default on a GPU or TPU), `released` (as the authors' code does it). Models: lstm, fixed:k,
attention:k, dynamic:k. Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/ptb, in the TFDS cache
and at its upstream address; with none of them the model trains on an embedded corpus, a matter of minutes.
RESULTS.md has what came out.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx

from dynskip_jax.analysis import plots
from dynskip_jax.data import find_language_corpus
from dynskip_jax.functional import TimeSkip
from dynskip_jax.training.experiment import run
from dynskip_jax.training.language_modelling import LanguageModelling, LanguageModellingSettings, uniform
from dynskip_jax.training.loop import FitResult, FitSettings, evaluation_keys
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.schedule import decay_after, decay_on_plateau
from experiments.cli import (
    CommonFlags,
    Real,
    Text,
    Whole,
    devices_line,
    join,
    models,
    parallel,
    parse,
    run_main,
    silent,
)
from experiments.settings import CommonSettings, resolve

DEFAULT_MODEL = "dynamic:5"

# Test perplexities of Gui et al. (2019), Table 3: 2 x 650 units, averages of ten runs.
PUBLISHED = {
    "lstm": ("paper: Regularized LSTM", {"dev_perplexity": 86.2, "test_perplexity": 82.7}),
    "fixed:3": ("paper: fixed skip 3", {"dev_perplexity": 85.3, "test_perplexity": 81.5}),
    "fixed:5": ("paper: fixed skip 5", {"dev_perplexity": 86.2, "test_perplexity": 82.0}),
    "attention:5": ("paper: attention", {"dev_perplexity": 85.1, "test_perplexity": 81.4}),
    "dynamic:5": ("paper: dynamic skip, λ=1, K=5", {"dev_perplexity": 82.5, "test_perplexity": 78.5}),
}

PRESETS: dict[str, dict[str, Any]] = {
    # Zaremba et al. (2014), the small model. Its agents get an Adam of their own: REINFORCE's noise then
    # takes no share of the clipping norm, and the network's updates are those of the baselines. λ = 0.5 was
    # ahead of the paper's 1 on dev after one epoch (176.7 against 180.8).
    "small": dict(
        features=200,
        num_layers=2,
        num_steps=20,
        batch_size=20,
        dropout=0.0,
        init_scale=0.1,
        epochs=13,
        learning_rate=1.0,
        decay=2.0,
        decay_after=4,
        clip=5.0,
        agent_learning_rate=0.001,
        rl_coef=1.0,
        entropy_coef=0.01,
        discount=0.5,
        baseline="batch",
        mix=0.5,
    ),
    # Gui et al. (2019), Section Language Modeling, where they say it; Zaremba et al.'s medium elsewhere.
    "paper": dict(
        features=650,
        num_layers=2,
        num_steps=35,
        batch_size=20,
        dropout=0.5,
        init_scale=0.05,
        epochs=39,
        learning_rate=1.0,
        decay=1.2,
        decay_after=6,
        clip=5.0,
    ),
    # As `paper`, with the choices of the authors' released code.
    "released": dict(
        features=650,
        num_layers=3,
        num_steps=35,
        batch_size=20,
        dropout=0.5,
        init_scale=0.05,
        epochs=100,
        learning_rate=1.0,
        decay=1.2,
        plateau=1.0,
        clip=5.0,
        agent_features=200,
        agent_input="mean",
        agent_init="normal",
        first_step="carried",
        forget_bias=1.0,
        recurrent_init="orthogonal",
        restart_buffer=True,
        reward="probability",
        rl_coef=0.3,
        entropy_coef=0.0,
        evaluation_mode="sample",
    ),
}


@dataclasses.dataclass(frozen=True)
class Flags(CommonFlags):
    """Flags of this experiment."""

    dataset: Text = None
    """Insist on a corpus by name: ptb, or pydoc-topics (the embedded one)."""
    num_layers: Whole = None
    """LSTM layers; the last one has the time skip."""
    num_steps: Whole = None
    """Steps of truncated back-propagation."""
    dropout: Real = None
    """Rate on each layer's input and before the softmax."""
    clip: Real = None
    """Largest norm of the gradient."""
    agent_learning_rate: Real = None
    """Gives agents an Adam of their own with this rate; by default they share the network's optimizer."""
    discount: Real = None
    """Of the rewards that follow an action."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Every setting, as resolved.

    `decay` divides the learning rate once an epoch after the first `decay_after`, or, with `plateau`, after
    each epoch in which dev perplexity fell by less than that. `recurrent_init` of the top layer is `uniform`
    or `orthogonal`. `restart_buffer` forgets all but the newest state at each segment.
    """

    num_layers: int
    num_steps: int
    init_scale: float
    decay: float
    clip: float
    decay_after: int = 0
    plateau: float | None = None
    agent_init: str = "uniform"
    agent_learning_rate: float | None = None
    recurrent_init: str = "uniform"
    restart_buffer: bool = False


class PTB:
    """See `training.experiment.Experiment`."""

    name = "ptb"
    columns: ClassVar = {
        "dev_perplexity": ("dev perplexity", ".2f"),
        "test_perplexity": ("test perplexity", ".2f"),
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
        self.skips = {model: self._skips(model) for model in models}
        self.note = ""
        if corpus.name != "ptb":
            self.note = f"Perplexities on {corpus.name}: not comparable with any published on PTB."

    def _skips(self, model: str) -> tuple[TimeSkip, ...]:
        return (TimeSkip(),) * (self.settings.num_layers - 1) + (self.settings.skip(model),)

    def config(self, model: str) -> dict[str, Any]:
        """See `Experiment`."""
        corpus = {"name": self.corpus.name, "fingerprint": self.corpus.fingerprint}
        return {
            "experiment": self.name,
            "model": model,
            "dataset": corpus,
            **dataclasses.asdict(self.settings),
        }

    def values(self, model: str) -> Sequence[dict[str, Any]]:
        """See `Experiment`."""
        return self.settings.values(model)

    def _cell_options(self) -> tuple[dict[str, Any], ...]:
        """Zaremba et al. draw every weight from one uniform distribution; the top layer may differ."""
        s = self.settings
        weights = uniform(s.init_scale)
        plain = dict(kernel_init=weights, recurrent_kernel_init=weights, bias_init=weights)
        top = dict(plain, agent_kernel_init=weights, agent_bias_init=weights) | s.cell_options()
        if s.recurrent_init == "orthogonal":
            top["recurrent_kernel_init"] = nnx.initializers.orthogonal()
        return (plain,) * (s.num_layers - 1) + (top,)

    def build(self, model: str) -> tuple[LanguageModelling, FitSettings]:
        """See `Experiment`."""
        s = self.settings
        task = LanguageModelling(
            self.corpus,
            LanguageModellingSettings(
                skips=self.skips[model],
                features=s.features,
                batch_size=s.batch_size,
                num_steps=s.num_steps,
                dropout=s.dropout,
                dtype=s.dtype,
                init_scale=s.init_scale,
                cell_options=self._cell_options(),
                objective=s.agent_objective(self.skips[model][-1].is_stochastic),
                epochs=s.epochs,
                num_seeds=len(s.all_seeds(model)),
                sweep=s.sweep(model),
                restart_buffer=s.restart_buffer,
                evaluation_mode=s.evaluation_mode,
            ),
        )
        if s.plateau is not None:
            schedule = decay_on_plateau(s.learning_rate, 1 / s.decay, threshold=s.plateau, floor=0.005)
        else:
            schedule = decay_after(s.learning_rate, 1 / s.decay, s.decay_after)
        fit_settings = FitSettings(
            seeds=s.all_seeds(model),
            epochs=s.epochs,
            optimizer=make_optimizer("sgd", clip=s.clip, agent_learning_rate=s.agent_learning_rate),
            learning_rate=schedule,
            patience=s.patience,
        )
        return task, fit_settings

    def final_metrics(self, model: str, task: LanguageModelling, result: FitResult) -> dict[str, np.ndarray]:
        """One stream per split: no token without its past. Agents are run in both modes."""
        keys = evaluation_keys(self.settings.all_seeds(model))
        modes = {"": self.settings.evaluation_mode}
        if self.skips[model][-1].is_stochastic:
            modes |= {"_greedy": "greedy", "_sampled": "sample"}
        metrics, done = {}, {}
        for suffix, mode in modes.items():
            for split in ("dev", "test"):
                if (split, mode) not in done:
                    done[split, mode] = task.evaluate(result.params, split, keys, mode=mode, batch_size=1)
                metrics |= {f"{name}{suffix}": value for name, value in done[split, mode].items()}
        return metrics

    def draw(self, model: str, task: LanguageModelling, result: FitResult, folder: Path, member: int) -> None:
        """Which k the agent chooses at the corpus's most frequent words."""
        skip = self.skips[model][-1]
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

    def published(self) -> Sequence[tuple[str, dict[str, float]]]:
        """The paper's rows, for its corpus alone."""
        if self.corpus.name != "ptb":
            return []
        return [PUBLISHED[model] for model in self.models if model in PUBLISHED]


def main(announce: Callable[[str], None] = print) -> None:
    """Runs the command line."""
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
