"""Check that cells equal Flax's cells where they should, and work in `nnx.RNN` and `nnx.Bidirectional`."""

import copy
import doctest
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.functional.transitions import GRUParams
from dynskip_jax.nn import SkipCell, SkipLayers, SkipLSTM, cells, layers

BATCH, TIME, INPUT, HIDDEN = 3, 7, 4, 5
LENGTHS = np.array([TIME, 2, 5])


@pytest.fixture
def x():
    return jax.device_put(np.random.default_rng(0).normal(size=(BATCH, TIME, INPUT)).astype(np.float32))


def cell_of(seed=0, max_skip=5, mix=1.0, **options):
    skip = F.Dynamic(max_skip, mix)
    return drawn(lambda: SkipCell(INPUT, HIDDEN, skip, **options, rngs=nnx.Rngs(seed)), seed)


def same_weights(skip):
    """Return Flax's LSTM cell, and a `SkipCell` with the same weights in its order of gates: g, i, f, o."""
    flax_cell = drawn(lambda: nnx.LSTMCell(INPUT, HIDDEN, param_dtype=jnp.float32, rngs=nnx.Rngs(1)))
    ours = drawn(lambda: SkipCell(INPUT, HIDDEN, skip, rngs=nnx.Rngs(2)))

    def joined(names, part):
        arrays = [np.asarray(getattr(getattr(flax_cell, name), part)[...]) for name in names]
        return jax.device_put(np.concatenate(arrays, axis=-1))

    ours.weights.w_x[...] = joined(("ig", "ii", "if_", "io"), "kernel")
    ours.weights.w_h[...] = joined(("hg", "hi", "hf", "ho"), "kernel")
    ours.weights.b[...] = joined(("hg", "hi", "hf", "ho"), "bias")
    return flax_cell, ours


@pytest.mark.parametrize(
    "skip",
    [
        *(F.Previous(), F.Dynamic(5, 0.0)),
        *and_slow(
            [F.Dynamic(1, 1.0), F.Dynamic(1, 0.0), F.Attention(1, 1.0), F.Fixed(4, 0.0)], lambda *skip: False
        ),
    ],
    ids=str,
)
def test_degenerate_skips_equal_flaxs_lstm_in_outputs_and_gradients(skip, x):
    flax_cell, ours = same_weights(skip)

    def gradient(cell):
        rnn = nnx.RNN(cell, rngs=False)
        start = cell.initialize_carry((BATCH, INPUT), nnx.Rngs(0))
        graphdef, params = nnx.split(rnn)

        def loss(params, x):
            h = nnx.merge(graphdef, params)(x, initial_carry=start)
            return jnp.sum(jnp.sin(h)), h

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    (of_ours, dx), h = gradient(ours)
    (of_flax, flax_dx), flax_h = gradient(flax_cell)
    np.testing.assert_allclose(h, flax_h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, flax_dx, rtol=1e-4, atol=1e-5)
    g_x = np.split(of_ours.cell.weights.w_x[...], 4, axis=1)
    g_h = np.split(of_ours.cell.weights.w_h[...], 4, axis=1)
    for n, (name_x, name_h) in enumerate([("ig", "hg"), ("ii", "hi"), ("if_", "hf"), ("io", "ho")]):
        np.testing.assert_allclose(g_x[n], of_flax.cell[name_x].kernel[...], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(g_h[n], of_flax.cell[name_h].kernel[...], rtol=1e-4, atol=1e-5)


def hard_tanh(x):
    return jnp.clip(x, -1, 1)


@pytest.mark.parametrize(
    ("kind", "implementation", "functions"),
    and_slow(
        itertools.product(
            ("lstm", "gru"),
            ("fused", "reference"),
            (
                dict(gate_fn=nnx.hard_sigmoid, activation_fn=nnx.soft_sign),
                dict(gate_fn=nnx.hard_sigmoid),
                dict(activation_fn=hard_tanh),
                {},
            ),
        ),
        lambda kind, implementation, functions: len(functions) == 2 and implementation == "fused",
    ),
)
def test_activation_functions_are_those_of_flaxs_cells(kind, implementation, functions, x):
    """With the same weights and activations, outputs and all gradients are equal."""
    flax_kind = nnx.OptimizedLSTMCell if kind == "lstm" else nnx.GRUCell
    flax_cell = drawn(
        lambda: flax_kind(INPUT, HIDDEN, **functions, param_dtype=jnp.float32, rngs=nnx.Rngs(1))
    )
    transition = (F.LSTM if kind == "lstm" else F.GRU)(**functions)
    params, structure = jax.tree.flatten(nnx.to_pure_dict(nnx.state(flax_cell, nnx.Param)))

    def of_flax(params, x):
        graphdef, _ = nnx.split(flax_cell)
        cell = nnx.merge(graphdef, nnx.State(structure.unflatten(params)))
        start = jnp.zeros((BATCH, HIDDEN))
        return nnx.RNN(cell, rngs=False)(x, initial_carry=(start, start) if kind == "lstm" else start)

    def ours(params, x):
        dense_i, dense_h = (structure.unflatten(params)[name] for name in ("dense_i", "dense_h"))
        if kind == "lstm":
            order = lambda array: jnp.concatenate([jnp.split(array, 4, -1)[n] for n in (2, 0, 1, 3)], -1)
            weights = F.LSTMParams(order(dense_i["kernel"]), order(dense_h["kernel"]), order(dense_h["bias"]))
        else:
            w_x, w_h, b = (
                jnp.split(array, [2 * HIDDEN], axis=-1)
                for array in (dense_i["kernel"], dense_h["kernel"], dense_i["bias"])
            )
            weights = GRUParams(w_x[0], w_h[0], b[0], w_x[1], w_h[1], b[1], jnp.zeros(HIDDEN))
        recurrence = F.Recurrence(transition=transition)
        carry = F.initial_carry(None, recurrence, F.zero_state(transition, (BATCH, HIDDEN)))
        options = dict(implementation=implementation)
        return F.unroll(F.LayerParams(weights), carry, x, recurrence, **options)[1].h

    def gradients(run):
        loss = lambda params, x: (jnp.sum(jnp.sin(run(params, x))), run(params, x))
        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    for a, b in zip(jax.tree.leaves(gradients(ours)), jax.tree.leaves(gradients(of_flax)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_default_activations_keep_the_products_that_are_fused():
    """A transition with the default functions passed explicitly equals the default transition."""
    assert F.LSTM(gate_fn=nnx.sigmoid, activation_fn=nnx.tanh) == F.LSTM()
    assert hash(F.GRU(gate_fn=jax.nn.sigmoid)) == hash(F.GRU())
    assert F.LSTM(gate_fn=nnx.hard_sigmoid) != F.LSTM()
    for transition in (F.LSTM(output_gate=False), F.GRU("before"), F.LSTM(activation_fn=hard_tanh)):
        assert pickle.loads(pickle.dumps(transition)) == copy.deepcopy(transition) == transition
    names = []

    def record(w, x, *addends, activations):
        names.append(activations)
        return (jnp.zeros((1, HIDDEN)),) * 4

    for transition in (F.LSTM(), F.LSTM(gate_fn=nnx.hard_sigmoid)):
        params = F.LSTMParams(None, None, None)
        transition.step(params, None, F.zero_state(transition, (1, HIDDEN)), record)
    assert names == [("tanh", "sigmoid", "sigmoid", "sigmoid"), ("tanh", "linear", "linear", "linear")]


@pytest.mark.parametrize(
    ("reverse", "time_major", "with_lengths"),
    # All combinations; the default cases are none of the three and all three.
    and_slow(itertools.product((False, True), repeat=3), lambda *case: sum(case) in (0, 3)),
)
def test_layer_equals_flaxs_rnn_of_the_same_cell(reverse, time_major, with_lengths, x):
    cell = cell_of(0, max_skip=3, mix=0.5)
    start = cell.initialize_carry((BATCH, INPUT), jax.random.key(5))
    lengths = LENGTHS if with_lengths else None
    options = dict(reverse=reverse, time_major=time_major)
    call = dict(seq_lengths=lengths, return_carry=True)
    inputs = np.swapaxes(x, 0, 1) if time_major else x
    flax_rnn = nnx.RNN(cell, keep_order=True, **options)
    flax_carry, flax_h = compiled(flax_rnn)(inputs, initial_carry=start, **call)
    (carry,), out = compiled(SkipLayers([cell], **options))(inputs, initial_carry=[start], **call)
    h, flax_h = np.asarray(out.h), np.asarray(flax_h)
    if time_major:
        h, flax_h = np.swapaxes(h, 0, 1), np.swapaxes(flax_h, 0, 1)
    valid = np.arange(TIME) < (LENGTHS[:, None] if with_lengths else np.full((BATCH, 1), TIME))
    np.testing.assert_allclose(h[valid], flax_h[valid], rtol=1e-5, atol=1e-6)
    assert not h[~valid].any()
    np.testing.assert_allclose(carry.slots.h, flax_carry.slots.h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(carry.slots.c, flax_carry.slots.c, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(carry.step, flax_carry.step)
    np.testing.assert_array_equal(jax.random.key_data(carry.key), jax.random.key_data(flax_carry.key))


def test_every_leaf_of_the_carry_leads_with_the_batch(x):
    cell = cell_of(0, recurrent_dropout=0.5, learnable_carry=True)
    start = cell.initialize_carry((BATCH, INPUT), nnx.Rngs(1))
    end, _ = compiled(cell)(start, x[:, 0])
    for carry in (start, end):
        leaves = jax.tree.leaves(carry)
        assert len(leaves) == 5
        assert all(leaf.shape[0] == BATCH for leaf in leaves)
    assert len(set(map(bytes, np.asarray(jax.random.key_data(start.key))))) == BATCH


def test_bidirectional_reads_each_sequence_from_both_of_its_own_ends(x):
    forward, backward = (cell_of(n, max_skip=3) for n in (0, 1))
    forward.eval()
    backward.eval()
    both = nnx.Bidirectional(nnx.RNN(forward), nnx.RNN(backward))
    h = compiled(both)(x, seq_lengths=LENGTHS)
    assert h.shape == (BATCH, TIME, 2 * HIDDEN)
    layers = SkipLayers([forward, backward], bidirectional=True)
    layers.eval()
    ours = compiled(layers)(x, seq_lengths=LENGTHS).h
    for n, length in enumerate(LENGTHS):
        np.testing.assert_allclose(
            np.asarray(ours)[n, :length], np.asarray(h)[n, :length], rtol=1e-5, atol=1e-6
        )
    ahead, back = compiled(nnx.RNN(forward)), compiled(nnx.RNN(backward))
    length = LENGTHS[1]
    alone, row = x[1:2, :length], np.asarray(h)[1, :length]
    np.testing.assert_allclose(row[:, :HIDDEN], ahead(alone)[0], rtol=1e-5, atol=1e-6)
    flipped = np.asarray(back(alone[:, ::-1]))[0, ::-1]
    np.testing.assert_allclose(row[:, HIDDEN:], flipped, rtol=1e-5, atol=1e-6)


def test_a_learned_initial_carry_gets_a_gradient(x):
    cell = cell_of(0, learnable_carry=True)
    gradient = nnx.grad(lambda layer: jnp.sum(layer(x, rngs=jax.random.key(0)).h ** 2))
    gradient = nnx.jit(gradient)(SkipLayers([cell]))
    assert jnp.abs(gradient.cells[0].initial.h[...]).min() > 0
    assert jnp.abs(gradient.cells[0].initial.c[...]).min() > 0


def test_recurrent_dropout_has_one_mask_for_all_steps_and_none_in_evaluation(x):
    cell = drawn(lambda: SkipCell(INPUT, 700, F.Previous(), recurrent_dropout=0.25, rngs=nnx.Rngs(0)))
    carry = cell.initialize_carry((BATCH, INPUT), jax.random.key(0))
    mask = np.asarray(carry.recurrent_mask)
    assert set(np.unique(mask)) == {0.0, np.float32(1 / 0.75)}
    assert abs(float(mask.mean()) - 1) < 0.05
    after, _ = compiled(cell)(carry, x[:, 0])
    np.testing.assert_array_equal(after.recurrent_mask, mask)
    cell.eval()
    assert cell.initialize_carry((BATCH, INPUT), jax.random.key(0)).recurrent_mask is None


def test_evaluation_is_greedy_and_training_samples(x):
    layer = SkipLayers([cell_of(max_skip=4)], call_rngs=nnx.Rngs(1))
    read = nnx.jit(lambda layer, x: layer(x).decisions[0].action)
    sampled = [np.asarray(read(layer, x)) for _ in range(2)]
    assert (sampled[0] != sampled[1]).any()  # each call samples new actions
    layer.eval()
    greedy = [np.asarray(read(layer, x)) for _ in range(2)]
    np.testing.assert_array_equal(*greedy)


def test_replayed_actions_reproduce_a_sampled_run(x):
    layer = SkipLayers([cell_of(0, max_skip=4)])
    first = compiled(layer)(x, seq_lengths=LENGTHS, rngs=jax.random.key(1))
    again = compiled(layer)(x, seq_lengths=LENGTHS, actions=[first.decisions[0].action])
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_models_stacked_by_vmap_equal_each_alone(x):
    def make(seed):
        cell = cell_of(seed, max_skip=3)
        return SkipLayers([cell])

    def run(params, key):
        return nnx.merge(graphdef, params)(x, rngs=key)

    parts = [nnx.split(make(seed)) for seed in range(3)]
    graphdef = parts[0][0]
    keys = jax.random.split(jax.random.key(9), 3)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(params for _, params in parts))
    together = jax.jit(jax.vmap(run))(stacked, keys)
    run = jax.jit(run)
    together = jax.tree.map(np.asarray, together)
    for n, (_, params) in enumerate(parts):
        alone = run(params, keys[n])
        np.testing.assert_array_equal(together.decisions[0].action[n], alone.decisions[0].action)
        np.testing.assert_allclose(together.h[n], alone.h, rtol=1e-5, atol=1e-6)


def test_stack_drops_layer_inputs_and_outputs_in_training_alone(x):
    stack = drawn(lambda: SkipLSTM(INPUT, 64, num_layers=2, dropout=0.5, rngs=nnx.Rngs(0)))
    dropped = compiled(stack)(x, rngs=jax.random.key(4))
    share = (np.asarray(dropped.h) == 0).mean()
    assert 0.4 < share < 0.6
    stack.eval()
    assert not (np.asarray(compiled(stack)(x).h) == 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("module", [cells, layers])
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
