"""Check several sequences in one row against each one in its own row, and the masks of zoneout."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, unroll
from recurrences import HIDDEN, INPUT, TIME_SKIPS, TRANSITIONS, problem

from dynskip_jax import functional as F

# Sequences of 3, 3 and 1 steps in one row, and of 1, 3 and 3 in another. The last 3 of 10 steps are
# padding.
PACKED = np.array([[7, 7, 7, 2, 2, 2, 9, 9, 9, 9], [0, 1, 1, 1, 2, 2, 2, 2, 2, 2]])
LENGTHS = np.array([7, 7])
PARTS = [(0, 0, 3), (0, 3, 6), (0, 6, 7), (1, 0, 1), (1, 1, 4), (1, 4, 7)]
CASES = [
    ("previous", "lstm", False),
    ("attention", "lstm", True),
    ("dynamic-followed", "gru", True),
    ("skip-rnn", "lstm", True),
]


@pytest.mark.parametrize(("skip", "transition", "reverse"), CASES)
def test_packed_sequences_are_those_of_rows_of_their_own(
    double_precision, skip, transition, reverse
):
    recurrence = F.Recurrence(TIME_SKIPS[skip], TRANSITIONS[transition])
    params, used, *_ = problem(recurrence)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 10, INPUT))
    names = recurrence.transition.state._fields
    one = recurrence.transition.state(*(rng.normal(size=(1, HIDDEN)) for _ in names))
    initial = jax.tree.map(lambda array: array.repeat(2, 0), one)
    carry = F.initial_carry(jax.random.key(3), recurrence, jax.device_put(initial), INPUT)
    settings = dict(reverse=reverse, policy=F.Policy("greedy"))
    packing = dict(seq_lengths=LENGTHS, segment_ids=PACKED, initial=initial)
    _, packed = unroll(params, carry, x, recurrence, **packing, **settings)
    alone = F.initial_carry(jax.random.key(4), recurrence, jax.device_put(one), INPUT)
    packed = jax.tree.map(np.asarray, packed)
    for row, start, end in PARTS:
        _, own = unroll(params, alone, x[row : row + 1, start:end], recurrence, **settings)
        of_part = jax.tree.map(lambda a, at=(row, slice(start, end)): a[at][None], packed)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), of_part, own)
    assert not packed.h[:, 7:].any()

    # Booleans say the same, and a sequence that begins at the first step does not use the carry.
    starts = np.diff(PACKED, axis=1, prepend=-1) != 0
    if not reverse:
        carry = jax.tree.map(lambda leaf: leaf[:2], used)
    packing = dict(seq_lengths=LENGTHS, resets=starts, initial=initial)
    _, again = unroll(params, carry, x, recurrence, **packing, **settings)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), again, packed)


def test_packed_sequences_draw_apart_and_the_first_goes_on_from_the_carry():
    recurrence = F.Recurrence(F.Dynamic(4))
    params, carry, *_ = problem(recurrence, jnp.float32)
    x = np.ones((3, 120, INPUT), np.float32)
    ids = np.repeat(np.arange(20), 6)[None].repeat(3, 0)
    _, out = unroll(params, carry, x, recurrence, segment_ids=ids)
    assert (
        len({tuple(actions) for actions in np.asarray(out.decision.action)[0].reshape(20, 6)}) > 7
    )
    _, whole = unroll(params, carry, x[:, :6], recurrence)
    np.testing.assert_allclose(np.asarray(out.h)[:, :6], whole.h, rtol=1e-5, atol=1e-6)


def test_zoneout_keeps_as_much_as_it_says_and_draws_each_step_anew():
    zoneout, keys = compiled(F.zoneout), jax.random.split(jax.random.key(0), 50)[:, None]
    steps = np.arange(40)[None].repeat(50, 0)
    h, c = map(np.asarray, zoneout(keys, steps, (0.1, 0.5), 30))
    assert set(np.unique(h)) == set(np.unique(c)) == {0.0, 1.0}
    standard_error = np.sqrt(0.25 / h.size)
    assert abs(h.mean() - 0.1) < 4 * standard_error and abs(c.mean() - 0.5) < 4 * standard_error
    assert c.std(axis=1).min() > 0.2  # the mask varies over time
    later = zoneout(keys, steps[:, 7:], (0.1, 0.5), 30)[1]
    np.testing.assert_array_equal(later, c[:, 7:])  # the same from any first step
    h, c = map(np.asarray, zoneout(keys, steps, (0.1, 0.0), 30, deterministic=True))
    assert np.unique(h) == np.float32(0.1) and not c.any()
