"""One minute: an agent learns which earlier state to use, beside a plain LSTM, and shows what it chose."""

import sys
import time

import numpy as np

from dynskip_jax.analysis.arcs import table_of_choices
from dynskip_jax.console import print_table, say
from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.experiments.number_prediction.config import EXPERIMENT
from dynskip_jax.learners import make_fit_settings, make_learner
from dynskip_jax.settings import resolve
from dynskip_jax.spec import make_spec
from dynskip_jax.trained import Trained
from dynskip_jax.training.loop import fit

# A fifth of the data and a third of the units of the preset in the results tables, to finish in one minute.
_SETTINGS = (
    dict(train_examples=20_000, features=64, batch_size=64, learning_rate=0.003, sampled_decay=0.5, epochs=6)
    | dict(relaxation="soft", relaxed_epochs=4, relaxed_entropy_coef=(0.0,))
    | dict(rollouts=1, baseline="batch", entropy="exact", entropy_coef=0.0)
)


def demo() -> None:
    """Train an agent that learns which earlier state to use, beside a plain LSTM, and show what it chose.

    The task is number prediction (Gui et al. 2019): eleven numbers, the last of which says at which place of
    the sequence the answer stands. The agent has to skip back there. Nothing is downloaded or written.
    """
    begun, words = time.monotonic(), EXPERIMENT.sample_text.split()
    settings = resolve(EXPERIMENT.settings, EXPERIMENT.presets, "paper", _SETTINGS).settings
    keep_compiled_programs()
    data, accuracies = EXPERIMENT.module.load(settings), {}
    for name in ("lstm", "dynamic:10"):
        print(f"training {name} on {settings.data.train_examples:,} sequences", file=sys.stderr)
        spec = make_spec(name, settings)
        learner = make_learner(EXPERIMENT, settings, spec, data, None)
        fitted = fit(learner, make_fit_settings(settings, spec, learner), None)
        trained = Trained(None, EXPERIMENT, settings, None, spec, learner, fitted.params)
        tested = learner.evaluate(fitted.params, "test", trained.keys)
        accuracies[name] = float(np.mean(tested["test_accuracy"]))
    reading, place = trained.read(EXPERIMENT.sample_text), int(words[-1])
    say(f"\nThe last number, {place}, names a place, counted from 0: the answer is {words[place]}.")
    say("At each number the agent went k numbers back, to the state just after another one:\n")
    print_table("", *table_of_choices(reading, {trained.name: reading.probabilities}))
    say(f"\n{trained.name} answers {reading.prediction}.  Accuracy on 10,000 test sequences:")
    for name, accuracy in accuracies.items():
        say(f"  {name:12} {accuracy:.2%}")
    say(f"{time.monotonic() - begun:.0f} s")
