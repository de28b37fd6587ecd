"""Check that a stack, with two directions and skips over time and depth, equals its layers called by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn, unroll
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.layers import drop_recurrent_weights
from dynskip_jax.nn import SkipCell, SkipLayers, SkipLSTM

BATCH, TIME, INPUT, HIDDEN = 3, 6, 2, 4
LENGTHS = np.array([6, 1, 4])


def inputs():
    return np.random.default_rng(0).normal(size=(BATCH, TIME, INPUT)).astype(np.float32)


@pytest.mark.parametrize(
    ("depth_skip", "bidirectional"),
    and_slow(
        itertools.product(
            (None, F.ToOutput(gated=True), F.Highway(), F.DenseToGates(), F.AttentionToOutput()),
            (False, True),
        ),
        lambda skip, both: both and skip == F.Highway(),
    ),
    ids=str,
)
def test_a_stack_is_its_layers_one_after_the_other(depth_skip, bidirectional):
    skips = [F.Previous(), F.Dynamic(2), F.Attention(2), F.SkipRNN()]
    transitions = [F.LSTM(), F.ULSTM(), F.Peephole(), F.LSTM()]
    if bidirectional:  # each layer has two cells
        skips, transitions = skips[1:3], transitions[1:3]
    options = dict(
        transition=transitions,
        depth_skip=depth_skip,
        bidirectional=bidirectional,
    )
    stack = drawn(lambda: SkipLSTM(INPUT, HIDDEN, skip=skips, **options, rngs=nnx.Rngs(0)))
    carry = stack.initialize_carry(BATCH, jax.random.key(1))
    ends, out = compiled(stack)(
        inputs(), initial_carry=carry, seq_lengths=LENGTHS, policy=F.Policy("greedy"), return_carry=True
    )
    ways = 2 if bidirectional else 1
    assert len(stack.cells) == len(ends) == len(out.decisions) == len(skips) * ways
    x, h, cell_state = inputs(), [], []
    for i, cell in enumerate(stack.cells):
        recurrence = cell.recurrence
        distance = 0 if depth_skip is None else depth_skip.layers_below * ways
        has_skip = depth_skip is not None and i >= distance
        assert (recurrence.depth_skip is not None) == has_skip
        below = None
        if has_skip:
            sources = cell_state if depth_skip.source == "cell_state" else h
            below = sources[i - distance]
            if depth_skip.all_below:
                below = np.concatenate(sources[i % ways : i - distance + 1 : ways], axis=-1)
        end, one = unroll(
            cell.params(),
            carry[i],
            x,
            recurrence,
            below=below,
            seq_lengths=LENGTHS,
            reverse=bidirectional and i % 2 == 1,
            keep_order=True,
            policy=F.Policy("greedy"),
            return_cell_state=True,
        )
        h.append(one.h)
        cell_state.append(one.cell_state)
        np.testing.assert_allclose(out.decisions[i].action, one.decision.action)
        for a, b in zip(end.slots, ends[i].slots, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        if (i + 1) % ways == 0:
            x = np.concatenate(h[-ways:], axis=-1)
    np.testing.assert_allclose(out.h, x, rtol=1e-5, atol=1e-6)
    assert out.h.shape == (BATCH, TIME, HIDDEN * ways) and not np.asarray(out.h)[1, 1:].any()


def bidirectional():
    return drawn(lambda: SkipLSTM(INPUT, HIDDEN, bidirectional=True, rngs=nnx.Rngs(0)))


def test_two_directions_are_flaxs_bidirectional():
    stack = bidirectional()
    forward, backward = (nnx.RNN(cell) for cell in stack.cells)
    x = inputs()
    theirs = compiled(nnx.Bidirectional(forward, backward))(x)
    ours = compiled(stack)(x)
    np.testing.assert_allclose(ours.h, theirs, rtol=1e-5, atol=1e-6)


def test_what_a_critic_sees_is_the_state_before_in_either_direction():
    stack = bidirectional()
    out = compiled(stack)(inputs(), seq_lengths=LENGTHS)
    (_, before), (_, after) = jax.tree.map(np.asarray, out.observations)
    ahead, back = np.split(np.asarray(out.states), 2, axis=-1)
    for n, length in enumerate(LENGTHS.tolist()):
        zero = np.zeros((1, HIDDEN))
        np.testing.assert_array_equal(before[n, :length], np.concatenate([zero, ahead[n, : length - 1]]))
        np.testing.assert_array_equal(after[n, :length], np.concatenate([back[n, 1:length], zero]))


@pytest.mark.slow
def test_eleven_layers_in_both_directions_have_gradients_everywhere():
    options = dict(num_layers=11, depth_skip=F.ToOutput(gated=True), bidirectional=True)
    stack = SkipLSTM(INPUT, HIDDEN, **options, rngs=nnx.Rngs(0))

    def loss(stack):
        return jnp.sum(stack(inputs()).h ** 2)

    gradients = nnx.grad(loss)(stack)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path


def test_sizes_that_do_not_fit_are_refused_in_one_line():
    with pytest.raises(UserError, match="from a layer of size 3 to one of size 5 needs mapping='linear'"):
        drawn(lambda: SkipLSTM(2, [3, 4, 5], depth_skip=F.ToOutput(), rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match="number of layers: skip for 3, hidden_features for 2"):
        SkipLSTM(2, [3, 4], skip=[F.Previous()] * 3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="expected one cell or 2, one for each layer, got 1"):
        SkipLSTM(2, 3, num_layers=2, cell=[{}], rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="at least one layer"):
        SkipLSTM(2, 3, skip=[], rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="key"):
        stack = drawn(lambda: SkipLSTM(2, 3, skip=F.Dynamic(2), rngs=nnx.Rngs(0)))
        stack.initialize_carry(2, jax.random.PRNGKey(0))
    linear = F.ToOutput(mapping="linear")
    stack = drawn(lambda: SkipLSTM(2, [3, 4, 5], depth_skip=linear, rngs=nnx.Rngs(0)))
    assert stack.cells[2].depth.w_m.shape == (3, 5)


@pytest.mark.parametrize(("depths", "bidirectional"), [((1,), False), ((0, 1), False), ((0, 0, 1, 1), True)])
def test_a_depth_skip_without_a_source_is_refused(depths, bidirectional):
    """Regression: such a layer received the output of another layer, or of its own forward half."""
    size = 2 * HIDDEN if bidirectional else HIDDEN
    cells = [
        drawn(
            lambda skip=skip: SkipCell(
                size, HIDDEN, depth_skip=F.ToOutput() if skip else None, rngs=nnx.Rngs(0)
            )
        )
        for skip in depths
    ]
    layer = len(depths) // (2 if bidirectional else 1)
    with pytest.raises(
        UserError, match=f"layer {layer} has a skip over depth, which comes from 2 layers below"
    ):
        SkipLayers(cells, bidirectional=bidirectional)


def test_what_a_stack_decides_is_no_option_of_its_cells():
    """Regression: a depth skip given only to layer 1 read that layer's own input."""
    for name, value in (("transition", F.GRU()), ("skip", F.Previous()), ("below_features", 3)):
        with pytest.raises(TypeError, match=name):
            SkipLSTM(
                2, 3, depth_skip=F.ToOutput(), cell=[{}, {}, {name: value}], num_layers=3, rngs=nnx.Rngs(0)
            )


@pytest.mark.parametrize(
    "transition",
    and_slow(
        [kind(small=2) if kind is F.SkimLSTM else kind() for kind in F.TRANSITIONS.values()],
        lambda transition: transition in (F.GRU(), F.FullGateRecurrence()),
    ),
    ids=list(F.TRANSITIONS),
)
def test_every_transition_is_a_flax_cell(transition):
    options = dict(transition=transition, learnable_carry=True)
    cell = drawn(lambda: SkipCell(INPUT, HIDDEN, F.Dynamic(3), **options, rngs=nnx.Rngs(0)))
    layers = SkipLayers([cell])
    layers.eval()
    h = compiled(nnx.RNN(cell))(inputs(), seq_lengths=LENGTHS)
    out = compiled(layers)(inputs(), seq_lengths=LENGTHS)
    valid = np.arange(TIME) < LENGTHS[:, None]
    np.testing.assert_allclose(np.asarray(h)[valid], np.asarray(out.h)[valid], rtol=1e-5, atol=1e-6)
    assert len(jax.tree.leaves(nnx.state(cell.initial))) == len(transition.state._fields)


@pytest.mark.slow
def test_parameters_may_be_narrower_than_float32():
    """Regression: construction failed, because orthogonal matrices cannot be drawn in bfloat16."""
    cell = SkipCell(INPUT, HIDDEN, F.Dynamic(3), param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(cell, nnx.Param))} == {jnp.dtype(jnp.bfloat16)}
    out = compiled(SkipLayers([cell]))(inputs().astype(jnp.bfloat16), rngs=jax.random.key(1))
    assert np.isfinite(out.h.astype(jnp.float32)).all() and set(np.unique(out.decisions[0].action)) == {
        1,
        2,
        3,
    }


def test_a_restarted_carry_holds_the_learned_state():
    """Regression: the forgotten states became zeros instead of the learned initial state."""
    make = lambda: SkipCell(INPUT, HIDDEN, F.Dynamic(3), learnable_carry=True, rngs=nnx.Rngs(0))
    cell = drawn(make)
    cell.initial.h[...] = jax.device_put(np.full(HIDDEN, 0.5, np.float32))
    (carry,), _ = compiled(SkipLayers([cell]))(inputs(), rngs=jax.random.key(1), return_carry=True)
    again = np.asarray(compiled(cell.restart_carry)(carry).slots.h)
    np.testing.assert_array_equal(again[:, 0], np.asarray(carry.slots.h)[:, 0])
    np.testing.assert_array_equal(again[:, 1:], 0.5)


def test_dropped_weights_are_those_that_multiply_the_state():
    options = dict(transition=F.ULSTM(), weight_dropout=0.5)
    cell = drawn(lambda: SkipCell(INPUT, 50, F.Previous(), **options, rngs=nnx.Rngs(0)))
    kept = cell.params().transition
    drop = compiled(lambda w, key: drop_recurrent_weights(w, F.ULSTM.recurrent, key, 0.5))
    dropped = jax.tree.map(np.asarray, drop(kept, jax.random.key(1)))
    for name in ("w_h", "w_n"):
        share = float((getattr(dropped, name) == 0).mean())
        assert 0.4 < share < 0.6
    for name in ("w_x", "w_xn", "b", "b_n"):
        np.testing.assert_array_equal(getattr(dropped, name), getattr(kept, name))
