"""Number prediction: Gui et al. (2019), Table 5.

    python -m experiments.number_prediction --length 11 --model dynamic:10 --mix 0.5

The last symbol of a sequence says where the answer stands (length 11, and any other but 21), or where the
position of the answer stands (length 21). Presets: `relaxed` (the default: a few relaxed epochs, then four
rollouts per example), `two_hops` (the default at length 21: the number of the step stands beside each digit),
`far` (the default beyond: 64 units), `rollouts` (nothing relaxed), `paper` (Eq. 5 as printed), `released` (as
the authors' code does it). Models: lstm, fixed:k, attention:k, dynamic:k. RESULTS.md has what came out, and
how long it took.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flax import nnx

from dynskip_jax.analysis import chains, plots
from dynskip_jax.data import NumberPredictionData, load_number_prediction
from dynskip_jax.data.number_prediction import DEFAULT_SIZES, TWO_HOPS, hops_of, num_symbols
from dynskip_jax.tasks.classification import Classification, ClassificationSettings, Examples
from dynskip_jax.training.loop import FitResult, FitSettings
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.schedule import decay_after
from dynskip_jax.training.step import evaluation_keys
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
from experiments.experiment import metrics_in_every_mode, run
from experiments.settings import CommonSettings, resolve

DEFAULT_MODEL = "dynamic:10"
EVALUATION_SAMPLES = 16  # predictions of an example that are averaged

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

# How agents are trained once their choices are sampled: leave-one-out over four rollouts of each example
# (Kool et al. 2019), and the exact entropy.
_ROLLOUTS = dict(rollouts=4, baseline="rollouts", entropy="exact")

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's model, its agent trained on four rollouts per example with a leave-one-out baseline (Kool et
    # al. 2019) and the exact entropy at a small weight. The plain LSTM learns slowly and for long: hence the
    # many epochs, and early stopping on dev for those that need few.
    "rollouts": dict(**_ROLLOUTS, entropy_coef=0.02, epochs=25, patience=5),
    # As `rollouts`, after a few relaxed epochs, in which the gradient says which states would have helped.
    # The entropy first keeps the policy open and then closes it, so that choosing one state changes little.
    "relaxed": dict(
        relaxation="soft",
        relaxed_epochs=3,
        relaxed_entropy_coef=0.02,
        relaxed_entropy_coef_final=-0.04,
        **_ROLLOUTS,
        entropy_coef=0.005,
        sampled_decay=0.5,
        epochs=25,
        patience=3,
    ),
    # Two hops take a chain of choices: the number of the step lets the agent tell its links apart, and the
    # entropy keeps the policy open until rollouts choose. Closing it before (as in `relaxed`) ends at 95 %.
    # Half as many units as the paper's.
    "two_hops": dict(
        positions="input",
        agent_init="one_hot",
        agent_features=100,
        forget_bias=1.0,
        mix=1.0,
        features=100,
        learning_rate=0.002,
        sampled_decay=0.6,
        clip=1.0,
        relaxation="soft",
        relaxed_epochs=5,
        **_ROLLOUTS,
        entropy_coef=0.02,
        entropy_coef_final=0.0,
        epochs=10,
    ),
    # One hop from far away, K = 50 to 200: as `relaxed`, without any entropy. Its bonus is a sum over all
    # steps, of which only the last one matters, and closing the policy early fixes wrong choices: 80 % at
    # length 51. The large learning rate makes the relaxed epochs, whose cost grows with K, few.
    "far": dict(
        features=64,
        batch_size=64,
        train_examples=50_000,
        learning_rate=0.003,
        relaxation="soft",
        relaxed_epochs=2,
        relaxed_entropy_coef=0.0,
        **_ROLLOUTS,
        entropy_coef=0.0,
        sampled_decay=0.5,
        epochs=4,
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
    """11: one hop, y = x[x[10]]. 21: two hops, y = x[x'] with x' = x[x[20]] < x[20]. Any other T up to 501:
    one hop, y = x[x[T-1]], to anywhere in the sequence."""
    train_examples: Whole = None
    """Training examples; the paper's are 100,000."""
    positions: Text = None
    """input: the number of the step stands beside each symbol, for network and agent; none (the paper)."""
    sampled_decay: Real = None
    """Factor on the learning rate, once an epoch after the relaxed epochs; without these the rate stays."""
    clip: Real = None
    """Largest norm of the gradient."""
    dropout: Real = None
    """Rate on the input and before the softmax."""
    rollouts: Whole = None
    """How often the agent's actions are sampled for each training example."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Every setting, as resolved.

    `agent_init` may also be `one_hot`: as `lecun`, but weights on the input are scaled by how many of its
    features are 1 (the symbol, and the position if `positions` is `input`), not by how many there are.
    """

    length: int
    train_examples: int = DEFAULT_SIZES["train"]
    positions: str = "none"
    sampled_decay: float = 1.0
    clip: float | None = None
    features: int = 200
    batch_size: int = 128
    epochs: int = 20
    learning_rate: float = 0.001
    mix: float = 0.5
    agent_init: str = "lecun"


class NumberPrediction:
    """See `experiments.experiment.Experiment`."""

    name = "number_prediction"
    columns: ClassVar = {
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
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

    def files(self, model: str) -> dict[str, str]:
        """Nothing: symbols are their own names."""
        return {}

    def _cell_options(self) -> dict[str, Any]:
        options = self.settings.cell_options()
        if self.settings.agent_init == "one_hot":
            ones = 2 if self.settings.positions == "input" else 1
            options["agent_input_kernel_init"] = nnx.initializers.normal(ones**-0.5)
        return options

    def values(self, model: str) -> Sequence[dict[str, Any]]:
        """See `Experiment`."""
        return self.settings.values(model)

    def build(self, model: str) -> tuple[Classification, FitSettings]:
        """See `Experiment`."""
        s = self.settings
        objective = s.agent_objective(self.skips[model].is_stochastic)
        # What takes no relaxed epochs, the baselines, keeps its learning rate.
        decay = s.sampled_decay if objective.relaxed_epochs else 1.0
        task = Classification(
            self.splits,
            ClassificationSettings(
                skips=(self.skips[model],),
                features=s.features,
                **s.recurrent_options(),
                num_symbols=num_symbols(s.length),
                num_classes=10,
                batch_size=s.batch_size,
                seeds=s.all_seeds(model),
                epochs=s.epochs,
                sweep=s.sweep(model),
                num_positions=s.length if s.positions == "input" else 0,
                cell_options=(self._cell_options(),),
                objective=objective,
                dropout=s.dropout,
                dtype=s.dtype,
                evaluation_mode=s.evaluation_mode,
            ),
        )
        fit_settings = FitSettings(
            seeds=s.all_seeds(model),
            epochs=s.epochs,
            optimizer=make_optimizer("adam", clip=s.clip),
            learning_rate=decay_after(s.learning_rate, decay, objective.relaxed_epochs),
            patience=s.patience,
        )
        return task, fit_settings

    def final_metrics(self, model: str, task: Classification, result: FitResult) -> dict[str, np.ndarray]:
        """Dev and test, agents in every mode; and how often the agent's choices are the right ones."""
        keys = evaluation_keys(self.settings.all_seeds(model))
        metrics = metrics_in_every_mode(
            lambda split, **how: task.evaluate(result.params, split, keys, **how),
            self.settings.evaluation_mode,
            is_stochastic=self.skips[model].is_stochastic,
            samples=EVALUATION_SAMPLES,
        )
        if self._truth_is_known(model):
            chosen = task.trace(result.params, "test", keys, layer=0)
            metrics["test_exact_decisions"] = self._exact(chosen, "test").mean(axis=1)
        return metrics

    def _truth_is_known(self, model: str) -> bool:
        """One hop takes one choice, the last one, if it reaches so far; two hops take a chain of choices."""
        skip, settings = self.skips[model], self.settings
        return skip.is_stochastic and (settings.length == TWO_HOPS or skip.max_skip >= settings.length - 1)

    def _exact(self, chosen: np.ndarray, split: str) -> np.ndarray:
        """Where the choices, (seeds, examples, time), are right, (seeds, examples).

        With one hop the last choice is to reach the answer; with two, the chain of choices that leads to the
        last state is to visit both positions that the digits point to.
        """
        hops = hops_of(self.splits[split].x)
        if hops.shape[1] == 1:
            return self.settings.length - 1 - chosen[:, :, -1] == hops[:, 0]
        rows = np.arange(len(hops))[:, None]
        return np.stack([chains.visited(of_seed)[rows, hops].all(axis=1) for of_seed in chosen])

    def draw(self, model: str, task: Classification, result: FitResult, folder: Path, member: int) -> None:
        """Where the agent reaches at each position, and at the end against the truth."""
        skip, length = self.skips[model], self.settings.length
        if not skip.has_agent:
            return
        seeds = self.settings.all_seeds(model)
        chosen = task.trace(result.params, "dev", evaluation_keys(seeds), layer=0)[member]
        counts = np.stack([np.bincount(column, minlength=skip.max_skip + 1)[1:] for column in chosen.T])
        note = f"{self.data.name}, dev, greedy, seed {seeds[member]}"
        plots.action_distribution(
            counts,
            folder / "skips_by_position.png",
            f"{model}: how far back the agent reaches at each position",
            note=note,
        )
        if not self._truth_is_known(model):
            return
        hops = hops_of(self.splits["dev"].x)
        if hops.shape[1] == 1:
            plots.action_against_truth(
                chosen[:, -1] - 1,
                length - 1 - hops[:, 0] - 1,
                skip.max_skip,
                folder / "last_skip_against_truth.png",
                f"{model}: the last choice against the right one",
            )
            return
        visited = chains.visited(chosen)
        for number, position in enumerate(hops.T, 1):
            plots.visited_positions(
                visited,
                position,
                folder / f"chain_visits_hop_{number}.png",
                f"{model}: chain to the last state",
                note=f"hop {number} of {hops.shape[1]}; {note}",
            )

    def published(self) -> Sequence[tuple[str, dict[str, float]]]:
        """The paper's rows for this length."""
        return PUBLISHED.get(self.settings.length, [])


def default_preset(length: int) -> str:
    """Returns the preset that solves the task of a length."""
    if length == TWO_HOPS:
        return "two_hops"
    return "relaxed" if length < TWO_HOPS else "far"


def main(announce: Callable[[str], None] = print) -> None:
    """Runs the command line."""
    flags = parse(Flags, NumberPrediction.name, __doc__)
    names = models(flags, DEFAULT_MODEL)
    settings = resolve(flags, Settings, PRESETS, default_preset(flags.length))
    with join(flags) as processes:
        announce = announce if processes.first else silent
        devices = parallel(flags, settings, names, processes)
        data = load_number_prediction(settings.length, data=flags.data, num_train=settings.train_examples)
        sizes = ", ".join(f"{name} {size:,}" for name, size in data.sizes.items())
        announce(f"data: {data.name}, {data.source} ({sizes})")
        chosen = "as asked" if flags.preset else "the default"
        announce(f"preset: {settings.preset} ({chosen}); {devices_line(devices)}")
        run(NumberPrediction(data, names, settings), flags.run_dir, parallel=devices, announce=announce)


if __name__ == "__main__":
    run_main(main)
