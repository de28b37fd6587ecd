"""Check the oracle analysis on tables of losses whose answer is known."""

import numpy as np
import pytest

from dynskip_jax.analysis.oracle import oracle_losses
from dynskip_jax.commands.oracle import _counted
from dynskip_jax.errors import UserError

STEPS = 3000
K = 4
RNG = np.random.default_rng(0)
# The signs of the first two inputs of a step select the k whose loss is 0.1; all others cost 1 to
# 2.
SEEN, NOISE = RNG.normal(size=(2, STEPS, 6))
LOSSES = RNG.uniform(1, 2, size=(STEPS, K))
LOSSES[np.arange(STEPS), 2 * (SEEN[:, 0] > 0) + (SEEN[:, 1] > 0)] = 0.1
RIGHT = LOSSES.argmin(axis=1) + 1
RANDOM = RNG.integers(1, K + 1, STEPS)
FITTED = int(0.7 * STEPS)


def test_means_are_those_of_a_loop_and_a_probe_finds_what_there_is_to_learn_and_nothing_else():
    found = oracle_losses(LOSSES, RANDOM, {"all": SEEN, "nothing": NOISE})
    rest = range(FITTED, STEPS)
    assert found.count == len(rest)
    assert found.taken == pytest.approx(np.mean([LOSSES[t][RANDOM[t] - 1] for t in rest]))
    assert found.random == pytest.approx(np.mean([sum(LOSSES[t]) / K for t in rest]))
    assert found.hindsight == pytest.approx(np.mean([min(LOSSES[t]) for t in rest]))
    probabilities = [sum(np.exp(-LOSSES[t])) / K for t in rest]
    assert found.averaged == pytest.approx(-np.mean(np.log(probabilities)))
    assert found.constant == pytest.approx(
        [np.mean([LOSSES[t][k] for t in rest]) for k in range(K)]
    )
    first = [sum(LOSSES[t][k] for t in range(FITTED)) for k in range(K)]
    assert found.fixed == 1 + first.index(min(first))
    # A probe of the inputs gains most of what hindsight gains. A probe of noise gains nothing
    # beyond chance.
    whole = min(found.random, *found.constant) - found.hindsight
    assert found.gain["all"].mean > 0.75 * whole and not found.gain["all"].is_chance
    is_fixed = LOSSES[:FITTED, found.fixed - 1].mean() <= LOSSES[:FITTED].mean()
    bar = found.constant[found.fixed - 1] if is_fixed else found.random
    assert found.probes["all"] == pytest.approx(bar - found.gain["all"].mean)
    assert abs(found.gain["nothing"].mean) < 2 * found.gain["nothing"].margin
    assert found.verdict().startswith("There is something to learn") and found.own.is_chance


@pytest.mark.slow
def test_what_the_agent_gains_is_told_from_what_a_probe_does():
    neither, agent = (oracle_losses(LOSSES, taken, {"this": NOISE}) for taken in (RANDOM, RIGHT))
    assert neither.own.is_chance and not agent.own.is_chance
    assert neither.verdict().startswith("Nothing to learn was found")
    assert agent.verdict().startswith("The agent has learnt something")


def test_the_bar_is_chosen_where_probes_are_fitted():
    """Constant 1 is best in the first 70 %, and worst in the rest and in all steps together."""
    losses = np.full((1000, 2), 1.0)
    losses[:700, 0] = 0.0
    losses[700:, 0] = 5.0
    assert losses.mean(axis=0).argmin() == 1
    found = oracle_losses(losses, np.full(1000, 2), {"nothing": np.zeros((1000, 1))})
    assert found.fixed == 1 and found.own.mean == pytest.approx(4.0)
    with pytest.raises(UserError, match="12 choices are too few"):
        oracle_losses(np.ones((12, 2)), np.ones(12, int), {"all": np.ones((12, 1))})


def test_steps_of_a_text_stand_one_stream_after_another():
    steps = np.arange(12).reshape(2, 6)
    pieces = [(np.ones((2, 1), bool), steps[:, [t]]) for t in range(6)]
    assert [of.tolist() for of in _counted(iter(pieces), 10, is_text=True)] == [[*range(10)]]
