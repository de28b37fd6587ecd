"""One minute: an agent learns which earlier state to use, beside a plain LSTM, and shows what it chose.

    python -m experiments.demo

The task is number prediction (Gui et al. 2019): eleven numbers, the last of which says at which place of the
sequence the answer stands. The agent has to skip back there. Nothing is downloaded, and nothing is written.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence

import numpy as np

from dynskip_jax.experiments.command_line import program, read_flags
from dynskip_jax.experiments.number_prediction import NumberPrediction
from dynskip_jax.experiments.settings import MAX_SEED, resolve
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import setting

arcs = LazyModule("dynskip_jax.analysis.arcs")
build = LazyModule("dynskip_jax.experiments.build")
compilation_cache = LazyModule("dynskip_jax.devices.compilation_cache")
loading = LazyModule("dynskip_jax.experiments.loaded")
loop = LazyModule("dynskip_jax.training.loop")
model_spec = LazyModule("dynskip_jax.experiments.model_spec")
step = LazyModule("dynskip_jax.training.step")

# A fifth of the data and a third of the units of the preset in the results tables, to finish in one minute.
_SETTINGS = dict(
    train_examples=20_000,
    features=64,
    batch_size=64,
    learning_rate=0.003,
    relaxation="soft",
    relaxed_epochs=4,
    relaxed_entropy_coef=0.0,
    rollouts=1,
    baseline="batch",
    entropy="exact",
    entropy_coef=0.0,
    sampled_decay=0.5,
    epochs=6,
)
_MODELS = ("lstm", "dynamic:10")


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of this command."""

    seed: int = setting(0, "Seed of the models and of the order of the data.", at_least=0, at_most=MAX_SEED)
    text: str = setting(
        "3 1 4 1 5 9 2 6 5 3 4", "Eleven numbers from 0 to 9; the last one is the place of the answer."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both models, and print their accuracy and what the agent chose.

    Raises:
        UserError: If the text is not eleven numbers.
    """
    flags = read_flags(program("demo"), __doc__, Flags, sys.argv[1:] if arguments is None else arguments)
    begun = time.monotonic()
    given = {**_SETTINGS, "seed": flags.seed}
    settings = resolve(NumberPrediction.settings_type, NumberPrediction.presets, "paper", given).settings
    experiment = NumberPrediction(settings)
    digits, words = experiment.encode(None, flags.text)
    compilation_cache.keep_compiled_programs()
    data, accuracies = experiment.load_data(), {}
    for name in _MODELS:
        print(f"training {name} on {settings.data.train_examples:,} sequences", file=sys.stderr)
        spec = model_spec.make_spec(name, settings)
        learner = build.make_learner(experiment, spec, data, None)
        fitted = loop.fit(learner, build.make_fit_settings(experiment, spec, learner), None)
        keys = step.evaluation_keys(spec.all_seeds)
        accuracies[name] = float(np.mean(learner.evaluate(fitted.params, "test", keys)["test_accuracy"]))
        loaded = loading.one_of(
            loading.FinishedModel(None, spec, experiment, None, learner, fitted.params, spec.seeds, 0), None
        )
    reading = loaded.read(flags.text)
    place = int(digits[-1])
    print(f"\nThe last number, {place}, names a place, counted from 0: the answer is {words[place]}.")
    print("An arc leads from each number to the one whose state the agent skipped back to:\n")
    print(arcs.arcs_text(reading, {name: reading.probabilities}, 80))
    print(f"\n{_MODELS[-1]} answers {reading.prediction}.  Accuracy on 10,000 test sequences:")
    for name, accuracy in accuracies.items():
        print(f"  {name:12} {accuracy:.2%}")
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
