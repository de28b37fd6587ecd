"""Check cells against Flax's, and in `nnx.RNN` and `nnx.Bidirectional`."""

import copy
import doctest
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipCell, SkipLayers, cells, characters, layers

BATCH = 3
TIME = 7
INPUT = 4
HIDDEN = 5
LENGTHS = np.array([TIME, 2, 5])
X = np.random.default_rng(0).normal(size=(BATCH, TIME, INPUT)).astype(np.float32)


def cell_of(seed=0, skip=F.Dynamic(3, 0.5), **options):  # noqa: B008 (immutable)
    return drawn(lambda: SkipCell(INPUT, HIDDEN, skip, **options, rngs=nnx.Rngs(seed)), seed)


def close(ours, theirs):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours, theirs)


@jax.jit
def contents(carry):
    """Return what a carry has, in order; keys cannot be compared as numbers."""
    return carry.with_slots(carry.slots)._replace(key=jax.random.key_data(carry.key))


def hard_tanh(x):
    return jnp.clip(x, -1, 1)


def test_a_transition_with_the_default_functions_passed_explicitly_is_the_default_one():
    assert (
        F.LSTM(gate_fn=nnx.sigmoid, activation_fn=nnx.tanh) == F.LSTM() != F.LSTM(gate_fn=hard_tanh)
    )
    assert hash(F.GRU(gate_fn=jax.nn.sigmoid)) == hash(F.GRU())
    for transition in (F.LSTM(output_gate=False), F.GRU("before"), F.LSTM(activation_fn=hard_tanh)):
        assert pickle.loads(pickle.dumps(transition)) == copy.deepcopy(transition) == transition


@pytest.mark.parametrize(("reverse", "with_lengths", "zoned"), [(False,) * 3, (True,) * 3])
def test_layer_equals_flaxs_rnn_of_the_same_cell(reverse, with_lengths, zoned):
    cell = cell_of(zoneout=(0.2, 0.5) if zoned else 0.0)
    start = cell.initialize_carry((BATCH, INPUT), jax.random.key(5))
    call = dict(return_carry=True)
    valid = np.ones((BATCH, TIME), bool)
    if with_lengths:
        call |= dict(seq_lengths=LENGTHS)
        valid = np.arange(TIME) < LENGTHS[:, None]
    flax_rnn = nnx.RNN(cell, keep_order=True, reverse=reverse)
    flax_carry, flax_h = compiled(flax_rnn)(X, initial_carry=start, **call)
    layers = compiled(SkipLayers([cell], reverse=reverse))
    (carry,), out = layers(X, initial_carry=[start], **call)
    close(np.asarray(out.h)[valid], np.asarray(flax_h)[valid])
    assert not np.asarray(out.h)[~valid].any()
    close(contents(carry), contents(flax_carry))


STEPPED = {
    "both, followed": F.Dynamic(4, agent="both", agent_keys="followed", empty_slots="masked"),
    "attention": F.Attention(3, 0.5),
}


@pytest.mark.parametrize("name", STEPPED)
def test_steps_of_a_cell_with_resets_equal_the_row(name):
    """Steps go on from a carry whose slots all differ, and two episodes begin, one at once."""
    cell = cell_of(skip=STEPPED[name], transition=F.GRU(), learnable_carry=True)
    first, x = np.split(X, [3], axis=1)
    start = cell.recurrence.init_carry(jax.random.key(5), BATCH, INPUT, HIDDEN)
    resets = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)

    def step(carry, given):
        x, reset = given
        return cell(carry, x, resets=reset)

    layers = compiled(SkipLayers([cell]))
    (carry,), _ = layers(first, initial_carry=[start], return_carry=True)
    (end,), out = layers(x, initial_carry=[carry], resets=resets, return_carry=True)
    steps = (np.swapaxes(x, 0, 1), resets.T)
    last, h = compiled(lambda carry, steps: jax.lax.scan(step, carry, steps))(carry, steps)
    close(np.swapaxes(h, 0, 1), out.h)
    close(contents(last), contents(end))

    # The row of an episode is the same on its own, with the keys that it drew with.
    if name == "attention":
        own = layers(x[:1, 2:], initial_carry=[cell.initialize_carry((1, INPUT))])
        close(own.h, out.h[:1, 2:])


def test_two_directions_are_flaxs_bidirectional():
    stack = SkipLayers([cell_of(0), cell_of(1)], bidirectional=True)
    stack.eval()
    forward, backward = (nnx.RNN(cell) for cell in stack.cells)
    theirs = np.asarray(compiled(nnx.Bidirectional(forward, backward))(X, seq_lengths=LENGTHS))
    ours = np.asarray(compiled(stack)(X, seq_lengths=LENGTHS).h)
    for n, length in enumerate(LENGTHS):
        close(ours[n, :length], theirs[n, :length])


def test_recurrent_dropout_has_one_mask_for_all_steps_and_none_in_evaluation():
    cell = drawn(lambda: SkipCell(INPUT, 700, recurrent_dropout=0.25, rngs=nnx.Rngs(0)))
    carry = cell.initialize_carry((BATCH, INPUT), jax.random.key(0))
    mask = np.asarray(carry.recurrent_mask)
    assert set(np.unique(mask)) == {0.0, np.float32(1 / 0.75)}
    assert abs(float(mask.mean()) - 1) < 0.05
    after, _ = compiled(cell)(carry, X[:, 0])
    np.testing.assert_array_equal(after.recurrent_mask, mask)
    cell.eval()
    assert cell.initialize_carry((BATCH, INPUT), jax.random.key(0)).recurrent_mask is None


@pytest.mark.parametrize("transition", [F.GRU(), F.FullGateRecurrence()], ids=str)
def test_every_transition_is_a_flax_cell(transition):
    # Both in evaluation: choices are greedy.
    cell = cell_of(transition=transition, learnable_carry=True)
    layers = SkipLayers([cell])
    layers.eval()
    h = np.asarray(compiled(nnx.RNN(cell))(X, seq_lengths=LENGTHS))
    valid = np.arange(TIME) < LENGTHS[:, None]
    close(h[valid], np.asarray(compiled(layers)(X, seq_lengths=LENGTHS).h)[valid])
    assert len(jax.tree.leaves(nnx.state(cell.initial))) == len(transition.state._fields)


@pytest.mark.slow
@pytest.mark.parametrize("module", [cells, characters, layers])
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
