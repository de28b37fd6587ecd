"""Check that a sweep is selected on dev, and that later commands read the seeds of the selected
value.
"""

import jax
import numpy as np
import pytest
import quick
from commands import finished_run, row_of

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.runs.load import load_run

# A rate of 0 in float32 keeps all weights 0, so that class 0 is the answer.
NOTHING, RATE = (1e-300, 0.01)
SWEPT = ("--model", "lstm", "--learning-rate", f"{NOTHING},{RATE}", "--seeds", "3", "--devices", 1)


@pytest.fixture(scope="module")
def contradicted(tmp_path_factory):
    """Return data on which what is learned from train is right on dev and wrong on test, and a
    run.
    """
    load = quick.ClassOfDigits.load

    def contradicting(settings):
        data = load(settings)
        test = data.content["test"]
        other = test.__class__(test.inputs, (test.targets + 1) % 3)
        return Dataset(
            data.name, data.sizes, "contradicting", "made up", data.content | {"test": other}
        )

    folder = tmp_path_factory.mktemp("contradicted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick.ClassOfDigits, "load", staticmethod(contradicting))
        selected = finished_run(quick.Quick, folder / "selected", *SWEPT)
        yield contradicting(quick.QuickSettings()).content, selected


def accuracy_of(weights, examples):
    weights = np.asarray(weights["weights"], float)
    scores = sum(weights[place][digits] for place, digits in enumerate(examples.inputs.T))
    return (scores.argmax(axis=1) == examples.targets).mean()


def test_a_sweep_is_selected_on_dev_and_test_is_read_for_the_selected_value_only(contradicted):
    splits, (folder, _, outcome) = contradicted
    row = row_of(folder)
    nothing, best = (of["metrics"] for of in row["sweep"])
    assert best["dev_accuracy"]["mean"] > nothing["dev_accuracy"]["mean"]
    zeros = {"weights": np.zeros((len(splits["test"].inputs.T), 10, 3))}
    assert best["test_accuracy"]["mean"] < accuracy_of(zeros, splits["test"])
    assert row["selected"] == {"learning_rate": RATE}

    assert [any(name.startswith("test_") for name in of["metrics"]) for of in row["sweep"]] == [
        False,
        True,
    ]
    for split in ("dev", "test"):
        name = f"{split}_accuracy"
        assert row["metrics"][name] == best[name]
    shown = [line.split("│")[1:] for line in outcome.out.splitlines() if "rate=" in line]
    assert [[cell.strip() != "" for cell in cells[1:3]] for cells in shown] == [
        [True, False],
        [True, True],
    ]
    assert f"{best['test_accuracy']['mean']:.2%}" in outcome.out


def test_the_seeds_of_a_sweep_are_those_of_the_selected_value(contradicted):
    splits, (folder, _, _) = contradicted
    row, models = row_of(folder), [load_run(folder, seed=seed) for seed in range(3)]
    for split in ("dev", "test"):
        found = [accuracy_of(model.params, splits[split]) for model in models]
        np.testing.assert_allclose(row["metrics"][f"{split}_accuracy"]["per_seed"], found)
        assert len(set(found)) > 1
    for model in models:  # the slice that other commands read
        together = jax.tree.map(lambda leaf, own=model.seeds: leaf[own], model.all_params)
        for seed, other in enumerate(models):
            np.testing.assert_array_equal(together["weights"][seed], other.params["weights"])
            assert np.asarray(together["weights"][seed]).any()  # not those of the rate of 0
