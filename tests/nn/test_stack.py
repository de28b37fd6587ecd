"""Check that a stack equals its layers, called by hand one after the other."""

import jax
import numpy as np
import pytest
from compiled import compiled, drawn, unroll
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.functional.layers import drop_recurrent_weights
from dynskip_jax.nn import SkipCell, SkipLayers, SkipLSTM

BATCH = 3
TIME = 6
INPUT = 2
HIDDEN = 4
LENGTHS = np.array([6, 1, 4])
X = np.random.default_rng(0).normal(size=(BATCH, TIME, INPUT)).astype(np.float32)


def stack_of(hidden=HIDDEN, **options):
    return drawn(lambda: SkipLSTM(INPUT, hidden, **options, rngs=nnx.Rngs(0)))


def cell_of(skip=F.Previous(), hidden=HIDDEN, **options):  # noqa: B008 (immutable)
    return drawn(lambda: SkipCell(INPUT, hidden, skip, **options, rngs=nnx.Rngs(0)))


def below_of(skip, outputs, i, ways):
    """Return what enters layer `i` from those of `outputs` that the depth skip reads.

    Which these are is said by the papers, not by the skip itself.
    """
    layers_below = 1 if isinstance(skip, F.Highway | F.AttentionToOutput) else 2
    if skip is None or i < layers_below * ways:
        return None
    nearest = i - layers_below * ways
    if isinstance(skip, F.Highway):
        return outputs[nearest].cell_state
    if isinstance(skip, F.DenseToGates | F.AttentionToOutput):
        return np.concatenate([out.h for out in outputs[i % ways : nearest + 1 : ways]], axis=-1)
    return outputs[nearest].h


@pytest.mark.parametrize(
    ("depth_skip", "bidirectional"),
    [
        (F.Highway(), True),
        (F.DenseToGates(), False),
        pytest.param(F.AttentionToOutput(), False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_stack_is_its_layers_one_after_the_other(depth_skip, bidirectional):
    skips = [F.Previous(), F.Dynamic(2), F.Attention(2), F.SkipRNN()]
    transitions = [F.LSTM(), F.ULSTM(), F.Peephole(), F.LSTM()]
    ways = 1
    if bidirectional:  # each layer has two cells
        ways = 2
        skips = skips[:3]
        transitions = transitions[:3]
    pieces = dict(skip=skips, transition=transitions, depth_skip=depth_skip)
    stack = stack_of(**pieces, bidirectional=bidirectional)
    greedy = F.Policy("greedy")
    start = stack.initialize_carry(BATCH, jax.random.key(1))
    options = dict(seq_lengths=LENGTHS, policy=greedy)
    ends, out = compiled(stack)(X, initial_carry=start, return_carry=True, **options)
    x = X
    outputs = []

    # By hand: the cells bottom first, each with what its depth skip reads.
    assert len(stack.cells) == len(ends) == len(out.decisions) == len(skips) * ways
    for i, cell in enumerate(stack.cells):
        below = below_of(depth_skip, outputs, i, ways)
        assert (cell.recurrence.depth_skip is None) == (below is None)
        how = dict(below=below, return_cell_state=True, **options)
        how["reverse"] = bidirectional and i % 2 == 1
        end, one = unroll(cell.params(), start[i], x, cell.recurrence, **how)
        outputs.append(one)
        np.testing.assert_array_equal(out.decisions[i].action, one.decision.action)
        for a, b in zip(end.slots, ends[i].slots, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        if (i + 1) % ways == 0:  # both directions of a layer are done
            x = np.concatenate([each.h for each in outputs[-ways:]], axis=-1)
    np.testing.assert_allclose(out.h, x, rtol=1e-5, atol=1e-6)
    assert out.h.shape == (BATCH, TIME, HIDDEN * ways) and not np.asarray(out.h)[1, 1:].any()


def test_observations_have_the_state_before_in_either_direction():
    out = compiled(stack_of(bidirectional=True))(X, seq_lengths=LENGTHS)
    (_, before), (_, after) = jax.tree.map(np.asarray, out.observations)
    ahead, back = np.split(np.asarray(out.states), 2, axis=-1)
    zero = np.zeros((1, HIDDEN))  # the initial state
    for n, length in enumerate(LENGTHS.tolist()):
        np.testing.assert_array_equal(
            before[n, :length], np.concatenate([zero, ahead[n, : length - 1]])
        )
        np.testing.assert_array_equal(after[n, :length], np.concatenate([back[n, 1:length], zero]))


@pytest.mark.parametrize("name", ["transition", "skip", "below_features", "agent_feature"])
def test_options_of_one_cell_are_those_that_the_stack_does_not_set(name):
    with pytest.raises(TypeError, match=name):
        stack_of(depth_skip=F.ToOutput(), num_layers=3, cell=[{}, {}, {name: F.GRU()}])


def test_the_initial_state_is_learned_and_a_restarted_carry_holds_it():
    """Regression: the forgotten states became zeros instead of the learned initial state."""
    cell = cell_of(F.Dynamic(3), learnable_carry=True)
    cell.initial.h[...] = jax.device_put(np.full(HIDDEN, 0.5, np.float32))
    (carry,), _ = compiled(SkipLayers([cell]))(X, rngs=jax.random.key(1), return_carry=True)
    again = np.asarray(compiled(cell.restart_carry)(carry).slots.h)
    np.testing.assert_array_equal(again[:, 0], np.asarray(carry.slots.h)[:, 0])
    np.testing.assert_array_equal(again[:, 1:], 0.5)
    gradient = nnx.jit(nnx.grad(lambda layers: layers(X, rngs=jax.random.key(0)).h.sum()))
    assert np.abs(gradient(SkipLayers([cell])).cells[0].initial.c[...]).min() > 0


def test_the_recurrent_mask_of_a_carry_is_used_whatever_the_keys_of_the_call():
    cell = cell_of(recurrent_dropout=0.5)
    read = compiled(SkipLayers([cell]))
    carry = [cell.initialize_carry((BATCH, INPUT), jax.random.key(3))]
    first, second = (read(X, initial_carry=carry, rngs=jax.random.key(i)).h for i in (1, 2))
    np.testing.assert_array_equal(first, second)


def test_dropped_weights_are_those_that_multiply_the_state():
    kept = cell_of(hidden=50, transition=F.ULSTM(), weight_dropout=0.5).params().transition
    drop = compiled(lambda w, key: drop_recurrent_weights(w, F.ULSTM.recurrent, key, 0.5))
    dropped = jax.tree.map(np.asarray, drop(kept, jax.random.key(1)))
    for name in ("w_h", "w_n"):
        assert 0.4 < float((getattr(dropped, name) == 0).mean()) < 0.6
    # Matrices on the input and biases are kept.
    for name in ("w_x", "w_xn", "b", "b_n"):
        np.testing.assert_array_equal(getattr(dropped, name), getattr(kept, name))
