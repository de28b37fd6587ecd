"""Three minutes: agents learn which earlier state to use, and show what they chose."""

import sys
import time

import numpy as np

from dynskip_jax.analysis.arcs import table_of_choices
from dynskip_jax.config.experiment import Experiment
from dynskip_jax.config.settings import resolve
from dynskip_jax.data.recall import NOT_ASKED
from dynskip_jax.experiments.number_prediction.config import EXPERIMENT as NUMBERS
from dynskip_jax.experiments.recall.config import EXPERIMENT as RECALL
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.plan import plan
from dynskip_jax.terminal.console import print_table, say
from dynskip_jax.training.devices import keep_compiled_programs
from dynskip_jax.training.loop import fit

# A fifth of the data and a third of the units of the preset in the results tables, to finish in one
# minute.
_NUMBERS = (
    dict(
        train_examples=20_000,
        features=64,
        batch_size=64,
        learning_rate=0.003,
        sampled_decay=0.5,
        epochs=6,
    )
    | dict(relaxation="soft", relaxed_epochs=4, relaxed_entropy_coef=(0.0,))
    | dict(rollouts=1, baseline="batch", entropy="exact", entropy_coef=0.0)
)
_RECALL = dict(train_examples=40_000, epochs=1, relaxed_epochs=1)


def demo() -> None:
    """Train agents beside plain LSTMs, and show which earlier states they chose.

    In number prediction (Gui et al. 2019), the last of eleven numbers says at which place of the
    sequence the answer stands. In associative recall (Arora et al. 2023), a row of 64 words begins
    with pairs, and a model that reads the first word of a pair again has to give the second.
    Nothing is downloaded or written.
    """
    begun = time.monotonic()
    keep_compiled_programs()
    say("four small models are trained one after the other: three minutes on two idle cores\n")
    numbers, accuracies = _train(NUMBERS, "paper", _NUMBERS, "lstm", "dynamic:10")
    words = NUMBERS.sample_text.split()
    reading = numbers.read(NUMBERS.sample_text)
    place = int(words[-1])
    say(f"\nThe last number, {place}, names a place, counted from 0: the answer is {words[place]}.")
    say("At each number the agent went k numbers back, to the state just after another one:\n")
    print_table("", *table_of_choices(reading, {numbers.name: reading.probabilities}))
    say(f"\n{numbers.name} answers {reading.prediction}.")
    _print_accuracies("10,000 test sequences", accuracies)

    recall, accuracies = _train(RECALL, "relaxed", _RECALL, "lstm", "dynamic:64")
    # The first test row, whatever it is: nothing is picked to look well.
    test = recall.learner.task.splits["test"]
    row = test.inputs[0]
    targets = test.targets[0]
    reading = recall.read(" ".join(map(str, row)))
    say(
        "\nAt each word of a pair that returned, the agent went k words back, and copied the next "
        "one:\n"
    )
    asked = [(t, reading.skips[t]) for t in np.flatnonzero(targets != NOT_ASKED)]
    rows = [
        [str(row[t]), str(k), str(row[t - k]), str(row[t - k + 1]), str(targets[t])]
        for t, k in asked
    ]
    print_table("", ["word", "k", "went back to", "copied", "answer"], rows)
    _print_accuracies("4,000 questions", accuracies)
    say(f"{time.monotonic() - begun:.0f} s")


def _train(experiment: Experiment, preset: str, changes: dict, *names: str) -> tuple[Trained, dict]:
    """Train models by their names; return the last one, and the accuracy of each on test."""
    changes = changes | dict(compare=",".join(names))
    resolved = resolve(experiment.settings, experiment.presets, preset, changes)
    data = experiment.task_class.load(resolved.settings)
    run = plan(experiment, resolved, data)
    accuracies = {}
    for model in run.models:
        name = model.spec.name
        count = data.sizes["train"]
        print(f"{experiment.name}: training {name} on {count:,} sequences", file=sys.stderr)
        # Without a run folder nothing is written.
        fitted = fit(model.learner, model.fit, None)
        trained = run.trained(model, None, fitted.params)
        tested = model.learner.evaluate(fitted.params, "test", trained.keys)
        accuracies[name] = float(np.mean(tested["test_accuracy"]))
    return trained, accuracies


def _print_accuracies(tested: str, accuracies: dict[str, float]) -> None:
    say(f"\nAccuracy on {tested}:")
    for name, accuracy in accuracies.items():
        say(f"  {name:12} {accuracy:.2%}")
