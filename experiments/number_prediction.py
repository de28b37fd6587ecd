"""Number prediction: Gui et al. (2019), Table 5.

    python -m experiments.number_prediction --length 11 --model dynamic:10 --mix 0.5

The last digit of a sequence says where the answer stands (length 11), or where the position of the answer
stands (length 21). Presets: `rollouts` (the default: four rollouts per example, leave-one-out baseline),
`paper` (Eq. 5 as printed), `released` (as the authors' code does it). Models: lstm, fixed:k, attention:k,
dynamic:k. RESULTS.md has what came out, and how long it took.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.data import NumberPredictionData, load_number_prediction
from dynskip_jax.training.classification import Classification, ClassificationSettings, Examples
from dynskip_jax.training.experiment import run
from dynskip_jax.training.loop import FitResult, FitSettings, evaluation_keys
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.schedule import decay_after
from experiments.cli import (
    CommonFlags,
    Real,
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

DEFAULT_MODEL = "dynamic:10"
DEFAULT_PRESET = "rollouts"

# Accuracies in percent of Gui et al. (2019), Table 5; the LSTM's dev accuracy at length 11 is not given.
PUBLISHED = {
    11: [
        ("paper: LSTM", {"test_accuracy": 0.704}),
        ("paper: attention", {"dev_accuracy": 0.713, "test_accuracy": 0.725}),
        ("paper: dynamic skip, λ=1, K=10", {"dev_accuracy": 0.796, "test_accuracy": 0.805}),
        ("paper: dynamic skip, λ=0.5, K=10", {"dev_accuracy": 0.904, "test_accuracy": 0.905}),
    ],
    21: [
        ("paper: LSTM", {"dev_accuracy": 0.262, "test_accuracy": 0.264}),
        ("paper: attention", {"dev_accuracy": 0.267, "test_accuracy": 0.269}),
        ("paper: dynamic skip, λ=1, K=10", {"dev_accuracy": 0.776, "test_accuracy": 0.777}),
        ("paper: dynamic skip, λ=0.5, K=10", {"dev_accuracy": 0.877, "test_accuracy": 0.885}),
    ],
}

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's model, its agent trained on four rollouts per example with a leave-one-out baseline (Kool et
    # al. 2019) and the exact entropy at a small weight. The plain LSTM learns slowly and for long: hence the
    # many epochs, and early stopping on dev for those that need few.
    "rollouts": dict(
        rollouts=4, baseline="rollouts", entropy="exact", entropy_coef=0.02, epochs=25, patience=5
    ),
    # Gui et al. (2019), Section Number Prediction with Skips; batch size and epochs are not given there.
    "paper": {},
    # As `paper`, with the choices of the authors' released code.
    "released": dict(
        mix=1.0,
        agent_features=10,
        agent_input="mean",
        agent_init="normal",
        first_step="carried",
        forget_bias=1.0,
        reward="correct",
        entropy_coef=0.0,
        evaluation_mode="sample",
    ),
}


@dataclasses.dataclass(frozen=True)
class Flags(CommonFlags):
    """Flags of this experiment."""

    length: int = 11
    """11: one hop, y = x[x[10]]. 21: two hops, y = x[x'] with x' = x[x[20]] < x[20]."""
    dropout: Real = None
    """Rate on the input and before the softmax."""
    rollouts: Whole = None
    """How often the agent's actions are sampled for each training example."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Every setting, as resolved."""

    length: int
    features: int = 200
    batch_size: int = 128
    epochs: int = 20
    learning_rate: float = 0.001
    mix: float = 0.5
    agent_init: str = "lecun"


class NumberPrediction:
    """See `training.experiment.Experiment`."""

    name = "number_prediction"
    columns: ClassVar = {
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_exact_decisions": ("exact decisions", ".2%"),
    }
    curves = ("dev_accuracy",)
    note = ""

    def __init__(self, data: NumberPredictionData, models: tuple[str, ...], settings: Settings):
        self.data = data
        self.models = models
        self.settings = settings
        self.dataset = {
            "name": data.name,
            "sizes": data.sizes,
            "fingerprint": data.fingerprint,
            "source": data.source,
        }
        self.splits = {name: Examples(x, y) for name, (x, y) in data.splits.items()}
        self.skips = {model: settings.skip(model) for model in models}

    def config(self, model: str) -> dict[str, Any]:
        """See `Experiment`."""
        data = {"name": self.data.name, "fingerprint": self.data.fingerprint}
        return {"experiment": self.name, "model": model, "dataset": data, **dataclasses.asdict(self.settings)}

    def build(self, model: str) -> tuple[Classification, FitSettings]:
        """See `Experiment`."""
        s = self.settings
        task = Classification(
            self.splits,
            ClassificationSettings(
                skips=(self.skips[model],),
                features=s.features,
                num_symbols=10,
                num_classes=10,
                batch_size=s.batch_size,
                seeds=self.settings.all_seeds,
                cell_options=(s.cell_options(),),
                objective=s.agent_objective(self.skips[model].is_stochastic),
                dropout=s.dropout,
                dtype=s.dtype,
                evaluation_mode=s.evaluation_mode,
            ),
        )
        fit_settings = FitSettings(
            seeds=self.settings.all_seeds,
            epochs=s.epochs,
            optimizer=make_optimizer("adam"),
            learning_rate=decay_after(s.learning_rate, 1.0, s.epochs),
            patience=s.patience,
        )
        return task, fit_settings

    def final_metrics(self, model: str, task: Classification, result: FitResult) -> dict[str, np.ndarray]:
        """Dev and test; agents in both modes, and how often their last choice is the right one."""
        keys = evaluation_keys(self.settings.all_seeds)
        metrics = {}
        modes = {"": self.settings.evaluation_mode}
        if self.skips[model].is_stochastic:
            modes |= {"_greedy": "greedy", "_sampled": "sample"}
        for suffix, mode in modes.items():
            for split in ("dev", "test"):
                values = task.evaluate(result.params, split, keys, mode=mode)
                metrics |= {f"{name}{suffix}": value for name, value in values.items()}
        if self._truth_is_known(model):
            chosen = task.trace(result.params, "test", keys, layer=0)[:, :, -1]
            metrics["test_exact_decisions"] = (chosen == self._right_skip("test")).mean(axis=1)
        return metrics

    def _truth_is_known(self, model: str) -> bool:
        """At length 11 one choice at the last step suffices, where it can reach the first digit."""
        skip = self.skips[model]
        return self.settings.length == 11 and skip.has_agent and skip.max_skip >= 10

    def _right_skip(self, split: str) -> np.ndarray:
        """At the last step, t = 10, the state just after digit j is State(t - k) for k = t - j."""
        return 10 - self.splits[split].x[:, -1]

    def draw(self, model: str, task: Classification, result: FitResult, folder: Path) -> None:
        """Where the first seed's agent reaches at each position, and at the end against the truth."""
        skip = self.skips[model]
        if not skip.has_agent:
            return
        chosen = task.trace(result.params, "dev", evaluation_keys(self.settings.all_seeds), layer=0)[0]
        counts = np.stack([np.bincount(column, minlength=skip.max_skip + 1)[1:] for column in chosen.T])
        plots.action_distribution(
            counts,
            folder / "skips_by_position.png",
            f"{model}: how far back the agent reaches at each position",
            note=f"{self.data.name}, dev, greedy, seed {self.settings.seed}",
        )
        if self._truth_is_known(model):
            plots.action_against_truth(
                chosen[:, -1] - 1,
                self._right_skip("dev") - 1,
                skip.max_skip,
                folder / "last_skip_against_truth.png",
                f"{model}: the last choice against the right one",
            )

    def published(self) -> Sequence[tuple[str, dict[str, float]]]:
        """The paper's rows for this length."""
        return PUBLISHED[self.settings.length]


def main(announce: Callable[[str], None] = print) -> None:
    """Runs the command line."""
    flags = parse(Flags, NumberPrediction.name, __doc__)
    names = models(flags, DEFAULT_MODEL)
    settings = resolve(flags, Settings, PRESETS, DEFAULT_PRESET)
    with join(flags) as processes:
        announce = announce if processes.first else silent
        devices = parallel(flags, settings, processes)
        data = load_number_prediction(settings.length, data=flags.data)
        sizes = ", ".join(f"{name} {size:,}" for name, size in data.sizes.items())
        announce(f"data: {data.name}, {data.source} ({sizes})")
        chosen = "as asked" if flags.preset else "the default"
        announce(f"preset: {settings.preset} ({chosen}); {devices_line(devices)}")
        run(NumberPrediction(data, names, settings), flags.run_dir, parallel=devices, announce=announce)


if __name__ == "__main__":
    run_main(main)
