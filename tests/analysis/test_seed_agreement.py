"""Check the agreement of agents against loops over pairs and in known cases."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.analysis.seed_agreement import agreement


@settings(deadline=None)
@given(st.data())
def test_it_is_the_mean_of_all_pairs(data):
    agents = data.draw(st.integers(2, 4))
    rows = data.draw(st.lists(st.lists(st.integers(1, 4), min_size=agents, max_size=agents), min_size=1))
    actions = np.array(rows)
    shares, chances = [], []
    for a, b in itertools.combinations(range(agents), 2):
        shares.append(sum(row[a] == row[b] for row in rows) / len(rows))
        equal = sum(one[a] == other[b] for one in rows for other in rows)  # all pairings of their choices
        chances.append(equal / len(rows) ** 2)
    found = agreement(actions)
    assert found.share == pytest.approx(np.mean(shares))
    assert found.by_chance == pytest.approx(np.mean(chances))
    # Renaming the choices does not change the agreement.
    again = agreement(np.array([0, 70, 3, 200, 5])[actions])
    assert again == pytest.approx(found)


def test_the_ends_of_the_scale():
    rng = np.random.default_rng(0)
    one, other = rng.integers(1, 6, (2, 20_000))
    assert agreement(np.stack([one, one], axis=1)).kappa == 1
    assert abs(agreement(np.stack([one, other], axis=1)).kappa) < 0.02
    assert agreement(np.stack([one, one % 5 + 1], axis=1)).kappa < 0
    assert np.isnan(agreement(np.ones((3, 2), int)).kappa)
    assert str(agreement(np.stack([one, one], axis=1))).startswith(
        "100.0% of choices, by their rates alone 2"
    )
