"""Check the oracle analysis on tables of losses whose answer is known, at both ends of the scale."""

import numpy as np
import pytest

from dynskip_jax.analysis.oracle import oracle_losses
from dynskip_jax.errors import UserError

STEPS, K = 3000, 4


def table(seed=0):
    """Return losses, choices, inputs and a generator; the best k depends only on the inputs.

    The signs of the first two inputs of a step select the k whose loss is 0.1; all others cost 1 to 2.
    """
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(STEPS, 6))
    right = 2 * (seen[:, 0] > 0) + (seen[:, 1] > 0)
    losses = rng.uniform(1, 2, size=(STEPS, K))
    losses[np.arange(STEPS), right] = 0.1
    taken = rng.integers(1, K + 1, STEPS)
    return losses, taken, seen, rng


def bar(found, losses):
    """Return the loss of the better blind choice, fixed or random, as fitted on the first 70 % of steps."""
    fitted = losses[: int(0.7 * STEPS)]
    is_fixed = fitted[:, found.fixed - 1].mean() <= fitted.mean()
    return found.constant[found.fixed - 1] if is_fixed else found.random


def test_means_are_those_of_a_loop():
    losses, taken, seen, _ = table()
    found = oracle_losses(losses, taken, {"all": seen})
    rest = range(int(0.7 * STEPS), STEPS)
    assert found.count == len(rest)
    assert found.taken == pytest.approx(sum(losses[t][taken[t] - 1] for t in rest) / len(rest))
    assert found.random == pytest.approx(sum(sum(losses[t]) / K for t in rest) / len(rest))
    assert found.hindsight == pytest.approx(sum(min(losses[t]) for t in rest) / len(rest))
    probabilities = [sum(np.exp(-loss) for loss in losses[t]) / K for t in rest]
    assert found.averaged == pytest.approx(-sum(np.log(probabilities)) / len(rest))
    for k in range(K):
        assert found.constant[k] == pytest.approx(sum(losses[t][k] for t in rest) / len(rest))
    first = [sum(losses[t][k] for t in range(int(0.7 * STEPS))) for k in range(K)]
    assert found.fixed == 1 + first.index(min(first))


def test_a_probe_finds_what_there_is_to_learn_and_nothing_else():
    losses, taken, seen, rng = table()
    found = oracle_losses(losses, taken, {"all": seen, "nothing": rng.normal(size=(STEPS, 6))})
    # A probe of the inputs gains most of what hindsight gains. A probe of noise gains nothing beyond chance.
    whole = min(found.random, *found.constant) - found.hindsight
    assert found.gain["all"].mean > 0.75 * whole and not found.gain["all"].is_chance
    assert found.probes["all"] == pytest.approx(bar(found, losses) - found.gain["all"].mean)
    assert abs(found.gain["nothing"].mean) < 2 * found.gain["nothing"].margin


@pytest.mark.slow
def test_what_the_agent_gains_is_told_from_what_a_probe_does():
    losses, random, seen, rng = table()
    noise, right = rng.normal(size=seen.shape), losses.argmin(axis=1) + 1
    found = {
        name: oracle_losses(losses, taken, {"this": features})
        for name, taken, features in (
            ("neither", random, noise),
            ("agent", right, noise),
            ("both", right, seen),
        )
    }
    assert found["neither"].own.is_chance and not found["agent"].own.is_chance
    of_right = found["agent"]
    assert of_right.own.mean == pytest.approx(bar(of_right, losses) - of_right.hindsight)
    assert of_right.taken == pytest.approx(of_right.hindsight)
    said = {name: result.verdict() for name, result in found.items()}
    assert said["neither"].startswith("Nothing to learn was found")
    assert said["agent"].startswith("The agent has learnt something")
    assert said["both"].startswith("There is something to learn")
    assert all(f"{result.own.mean:+.4f}" in said[name] for name, result in found.items())


def test_too_few_steps_are_refused():
    with pytest.raises(UserError, match="12 choices are too few"):
        oracle_losses(np.ones((12, 2)), np.ones(12, int), {"all": np.ones((12, 1))})


def test_the_bar_is_chosen_where_probes_are_fitted():
    """Constant 1 is best in the first 70 % and worst afterwards. The agent is still compared with it."""
    losses = np.full((1000, 2), 1.0)
    losses[:700, 0], losses[700:, 0] = 0.0, 3.0
    found = oracle_losses(losses, np.full(1000, 2), {"nothing": np.zeros((1000, 1))})
    assert found.fixed == 1 and found.own.mean == pytest.approx(2.0)
