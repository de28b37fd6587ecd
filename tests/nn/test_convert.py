"""Check the conversion of weights from and to Flax, Keras and torch, against NumPy, Flax and torch."""

import doctest
import functools
import warnings

import flax.linen as linen
import jax
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.nn import (
    SkipCell,
    SkipLayers,
    convert,
    from_flax,
    from_keras,
    from_keras_bidirectional,
    from_torch,
    to_flax,
    to_keras,
    to_torch,
)

INPUT, HIDDEN, BATCH, TIME = 3, 4, 5, 6
LENGTHS = np.array([6, 1, 3, 6, 2])


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = normal(0, BATCH, TIME, INPUT)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lstm_step(x, h, c, w_x, w_h, b):
    """Compute an LSTM step with weights whose columns are i, f, g, o; return (h, c)."""
    i, f, g, o = np.split(x @ w_x + h @ w_h + b, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def torch_state(kind, layers, both_ways, bias=True, seed=1):
    """Return random weights with the names and shapes of torch's documentation."""
    gates, rng, state = {"lstm": 4, "gru": 3}[kind], np.random.default_rng(seed), {}
    for layer in range(layers):
        size = INPUT if layer == 0 else HIDDEN * (1 + both_ways)
        for suffix in ("", "_reverse")[: 1 + both_ways]:
            state[f"weight_ih_l{layer}{suffix}"] = rng.normal(size=(gates * HIDDEN, size))
            state[f"weight_hh_l{layer}{suffix}"] = rng.normal(size=(gates * HIDDEN, HIDDEN))
            if bias:
                state[f"bias_ih_l{layer}{suffix}"] = rng.normal(size=gates * HIDDEN)
                state[f"bias_hh_l{layer}{suffix}"] = rng.normal(size=gates * HIDDEN)
    return {name: array.astype(np.float32) for name, array in state.items()}


def torch_by_hand(kind, state, x, lengths):
    """Apply the equations of torch's documentation to each sequence separately; return the outputs."""
    layers = 1 + max(int(name.split("_l")[1][0]) for name in state)
    outputs = np.zeros((len(x), x.shape[1], HIDDEN * (1 + ("weight_ih_l0_reverse" in state))))
    for n, length in enumerate(lengths):
        sequence = np.asarray(x[n, :length], np.float64)
        for layer in range(layers):
            sides = []
            for suffix in ("", "_reverse"):
                place = f"l{layer}{suffix}"
                if f"weight_ih_{place}" not in state:
                    continue
                w_i, w_h = state[f"weight_ih_{place}"].T, state[f"weight_hh_{place}"].T
                b_i, b_h = (
                    state.get(f"bias_{side}_{place}", np.zeros(w_i.shape[1])) for side in ("ih", "hh")
                )
                h, c, made = np.zeros(HIDDEN), np.zeros(HIDDEN), []
                for token in sequence[::-1] if suffix else sequence:
                    if kind == "lstm":
                        h, c = lstm_step(token, h, c, w_i, w_h, b_i + b_h)
                    else:
                        (ir, iz, i_n), (hr, hz, hn) = (
                            np.split(v, 3) for v in (token @ w_i + b_i, h @ w_h + b_h)
                        )
                        r, z = sigmoid(ir + hr), sigmoid(iz + hz)
                        h = (1 - z) * np.tanh(i_n + r * hn) + z * h
                    made.append(h)
                sides.append(np.array(made[::-1] if suffix else made).reshape(-1, HIDDEN))
            sequence = np.concatenate(sides, axis=1)
        outputs[n, :length] = sequence
    return outputs


KINDS = [
    (kind, layers, both) for kind in ("lstm", "gru") for layers, both in ((1, False), (2, False), (2, True))
]


@pytest.mark.parametrize(
    ("kind", "layers", "both_ways", "bias"),
    and_slow(
        [(*case, bias) for case in KINDS for bias in (True, False)],
        lambda kind, layers, both_ways, bias: bias and both_ways,
    ),
)
def test_torchs_weights_and_back(kind, layers, both_ways, bias):
    state = torch_state(kind, layers, both_ways, bias)
    stack = from_torch(state)
    h = compiled(stack)(X, seq_lengths=LENGTHS).h
    np.testing.assert_allclose(h, torch_by_hand(kind, state, X, LENGTHS), atol=1e-6)
    back = to_torch(stack)
    assert set(back) == set(torch_state(kind, layers, both_ways))
    assert {name: array.shape for name, array in back.items() if "weight" in name} == {
        name: array.shape for name, array in state.items() if "weight" in name
    }
    np.testing.assert_allclose(
        torch_by_hand(kind, back, X, LENGTHS), torch_by_hand(kind, state, X, LENGTHS), atol=1e-6
    )
    again = to_torch(from_torch(back))
    for name, array in back.items():
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize(("kind", "layers", "both_ways"), KINDS)
def test_torch_itself_agrees(kind, layers, both_ways):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](
        INPUT, HIDDEN, layers, bidirectional=both_ways, batch_first=True
    )
    stack = from_torch({name: value.numpy() for name, value in theirs.state_dict().items()})
    h = compiled(stack)(X, seq_lengths=LENGTHS).h

    def run():
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            torch.from_numpy(X), LENGTHS, batch_first=True, enforce_sorted=False
        )
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)[0].numpy()

    np.testing.assert_allclose(h, run(), atol=1e-6)
    theirs.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in to_torch(stack).items()})
    np.testing.assert_allclose(h, run(), atol=1e-6)


FLAX_CELLS = {"lstm": nnx.LSTMCell, "optimized": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}


@pytest.mark.parametrize("name", FLAX_CELLS)
def test_flaxs_cells_and_back(name):
    theirs = drawn(lambda: FLAX_CELLS[name](INPUT, HIDDEN, rngs=nnx.Rngs(3)))
    cell = from_flax(theirs)
    expected = compiled(nnx.RNN(theirs))(X)
    np.testing.assert_allclose(compiled(SkipLayers([cell]))(X).h, expected, atol=1e-6)
    kind = {"gru": nnx.GRUCell}.get(name, nnx.OptimizedLSTMCell)
    back = drawn(lambda: kind(INPUT, HIDDEN, rngs=nnx.Rngs(4)), seed=4)
    state = nnx.state(back, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(jax.device_put, to_flax(cell)))
    nnx.update(back, state)
    np.testing.assert_allclose(compiled(nnx.RNN(back))(X), expected, atol=1e-6)


@pytest.mark.parametrize("name", and_slow(FLAX_CELLS, lambda name: name == "gru"))
def test_flaxs_cells_with_other_activations(name):
    functions = dict(gate_fn=jax.nn.hard_sigmoid, activation_fn=jax.nn.relu)
    theirs = drawn(lambda: FLAX_CELLS[name](INPUT, HIDDEN, **functions, rngs=nnx.Rngs(3)))
    params = nnx.to_pure_dict(nnx.state(theirs, nnx.Param))
    read, told = from_flax(theirs), from_flax(params, **functions)
    assert read.recurrence == told.recurrence
    expected = compiled(nnx.RNN(theirs))(X)
    np.testing.assert_allclose(compiled(SkipLayers([read]))(X).h, expected, atol=1e-6)


@pytest.mark.parametrize("name", and_slow(["LSTMCell", "OptimizedLSTMCell", "GRUCell"], "GRUCell".__eq__))
def test_linens_cells_and_back(name):
    bias = nnx.initializers.normal(1.0)
    theirs = linen.RNN(getattr(linen, name)(HIDDEN, bias_init=bias))
    shapes = jax.eval_shape(theirs.init, jax.random.key(0), X)
    variables = jax.tree.map(lambda leaf: normal(4, *leaf.shape), shapes)
    (params,) = variables["params"].values()
    cell = from_flax(params)
    apply = jax.jit(theirs.apply)
    expected = apply(variables, X)
    np.testing.assert_allclose(compiled(SkipLayers([cell]))(X).h, expected, atol=1e-6)
    back = {"params": {"cell": to_flax(cell, "linen")}}
    np.testing.assert_allclose(apply(back, X), expected, atol=1e-6)


@pytest.mark.parametrize("bias", and_slow([True, False], bool))
def test_keras_lstm_and_back(bias):
    """The columns of Keras' LSTM are i, f, c, o."""
    kernel, recurrent, b = normal(1, INPUT, 4 * HIDDEN), normal(2, HIDDEN, 4 * HIDDEN), normal(3, 4 * HIDDEN)
    cell = from_keras([kernel, recurrent, b] if bias else [kernel, recurrent])
    out = np.asarray(compiled(SkipLayers([cell]))(X).h)
    h = c = np.zeros((BATCH, HIDDEN))
    for t in range(TIME):
        h, c = lstm_step(X[:, t], h, c, kernel, recurrent, b if bias else 0)
        np.testing.assert_allclose(out[:, t], h, atol=1e-6)
    back = to_keras(cell)
    for ours, theirs in zip(back, [kernel, recurrent, b if bias else np.zeros_like(b)], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("reset_after", [True, False])
def test_keras_gru_and_back(reset_after):
    """The columns of Keras' GRU are z, r, h."""
    kernel, recurrent = normal(1, INPUT, 3 * HIDDEN), normal(2, HIDDEN, 3 * HIDDEN)
    bias = normal(3, 2, 3 * HIDDEN) if reset_after else normal(3, 3 * HIDDEN)
    cell = from_keras([kernel, recurrent, bias])
    out = np.asarray(compiled(SkipLayers([cell]))(X).h)
    uz, ur, un = np.split(recurrent, 3, axis=1)
    h = np.zeros((BATCH, HIDDEN))
    for t in range(TIME):
        xz, xr, xn = np.split(X[:, t] @ kernel + (bias[0] if reset_after else bias), 3, axis=1)
        bz, br, bn = np.split(bias[1], 3) if reset_after else (0, 0, 0)
        z, r = sigmoid(xz + h @ uz + bz), sigmoid(xr + h @ ur + br)
        n = np.tanh(xn + r * (h @ un + bn)) if reset_after else np.tanh(xn + (r * h) @ un)
        h = z * h + (1 - z) * n
        np.testing.assert_allclose(out[:, t], h, atol=1e-6)
    again = compiled(SkipLayers([from_keras(to_keras(cell))]))(X).h
    np.testing.assert_allclose(again, out, atol=1e-6)


def keras_layer(kind, seed):
    """Return random weights as in Keras' `get_weights`; a GRU has `reset_after=True`."""
    width = {"lstm": 4, "gru": 3}[kind] * HIDDEN
    bias = (2, width) if kind == "gru" else (width,)
    return [normal(seed, INPUT, width), normal(seed + 1, HIDDEN, width), normal(seed + 2, *bias)]


@pytest.mark.parametrize("kind", and_slow(["lstm", "gru"], "gru".__eq__))
def test_both_directions_of_keras(kind):
    forward, backward = keras_layer(kind, 1), keras_layer(kind, 4)
    config = {"merge_mode": "concat", "layer": {"config": {"activation": "tanh"}}}
    both = compiled(from_keras_bidirectional([*forward, *backward], config=config))(X).h
    one, other = (compiled(SkipLayers([from_keras(part)])) for part in (forward, backward))
    np.testing.assert_allclose(both[..., :HIDDEN], one(X).h, atol=1e-6)
    np.testing.assert_allclose(both[..., HIDDEN:], other(X[:, ::-1]).h[:, ::-1], atol=1e-6)


def test_keras_layer_with_other_activations():
    kernel, _, b = weights = keras_layer("lstm", 1)
    config = {"activation": "tanh", "recurrent_activation": "hard_sigmoid"}
    cell = from_keras(weights, config=config, gate_fn=nnx.hard_sigmoid)
    out = np.asarray(compiled(SkipLayers([cell]))(X).h)[:, 0]
    i, _, c, o = np.split(X[:, 0] @ kernel + b, 4, axis=1)
    i, o = (np.clip(part / 6 + 0.5, 0, 1) for part in (i, o))
    np.testing.assert_allclose(out, o * np.tanh(i * np.tanh(c)), atol=1e-6)


def test_an_agent_is_put_into_a_trained_network():
    state = torch_state("lstm", 1, False)
    stack = from_torch(state, skip=F.Dynamic(3, mix=0.0), rngs=nnx.Rngs(1))
    out = compiled(stack)(X, seq_lengths=LENGTHS, rngs=jax.random.key(0))
    # With λ = 0 the choices have no effect, so the outputs are those of the trained network.
    np.testing.assert_allclose(out.h, torch_by_hand("lstm", state, X, LENGTHS), atol=1e-6)
    assert set(np.unique(out.decisions[0].action)) == {0, 1, 2, 3}
    first, second = (
        from_flax(
            drawn(lambda: nnx.LSTMCell(INPUT, HIDDEN, rngs=nnx.Rngs(0))), skip=F.Dynamic(3), rngs=nnx.Rngs(n)
        )
        for n in (1, 2)
    )
    assert not np.allclose(first.agent.w_h[...], second.agent.w_h[...])


@pytest.mark.parametrize("skip", [F.Mean(3), F.Random(3), F.Fixed(3)], ids=lambda skip: skip.name)
def test_what_has_no_weights_needs_no_key(skip):
    state = torch_state("lstm", 1, False)
    stack = from_torch(state, skip=skip)
    assert stack.skips == (skip,)


def test_biases_are_left_out_where_the_other_library_has_none():
    """`load_state_dict` and `set_weights` refuse weights that their layer does not have."""
    for kind in ("lstm", "gru"):
        state = torch_state(kind, 2, True, False)
        stack = from_torch(state)
        back = to_torch(stack, bias=False)
        assert set(back) == set(state)
        for name, array in state.items():
            np.testing.assert_array_equal(back[name], array)
        assert len(to_keras(stack.cells[0], bias=False)) == 2


def test_bfloat16_goes_to_torch_as_float32():
    """Regression: `torch.from_numpy` refuses arrays of bfloat16."""
    cell = drawn(lambda: SkipCell(INPUT, HIDDEN, param_dtype="bfloat16", rngs=nnx.Rngs(0)))
    for array in to_torch(cell).values():
        assert array.dtype == np.float32


@functools.cache
def refusals():
    lstm = torch_state("lstm", 1, False)

    def of(transition):
        return drawn(lambda: SkipCell(INPUT, HIDDEN, F.Previous(), transition=transition, rngs=nnx.Rngs(0)))

    cell, before, hard = of(F.ULSTM()), of(F.GRU("before")), of(F.LSTM(gate_fn=nnx.hard_sigmoid))
    inside = from_torch(torch_state("gru", 1, False)).cells[0]
    deep = drawn(lambda: SkipCell(INPUT, HIDDEN, depth_skip=F.ToOutput(), rngs=nnx.Rngs(0)))
    learned = drawn(lambda: SkipCell(INPUT, HIDDEN, learnable_carry=True, rngs=nnx.Rngs(0)))
    zoned = drawn(lambda: SkipCell(INPUT, HIDDEN, zoneout=0.5, rngs=nnx.Rngs(0)))
    first, gru = from_torch(lstm).cells[0], from_torch(torch_state("gru", 1, False)).cells[0]
    wide = {
        **lstm,
        "weight_hh_l0": normal(0, 2 * HIDDEN, HIDDEN),
        "weight_ih_l0": normal(0, 2 * HIDDEN, INPUT),
    }
    return {
        "projection": (
            lambda: from_torch({**lstm, "weight_hr_l0": lstm["weight_hh_l0"]}),
            "without a projection",
        ),
        "nothing": (lambda: from_torch({}), "got nothing"),
        "missing": (
            lambda: from_torch({n: a for n, a in lstm.items() if n != "bias_hh_l0"}),
            "bias_hh_l0 is missing",
        ),
        "half of the directions": (
            lambda: from_torch({**lstm, "weight_ih_l0_reverse": lstm["weight_ih_l0"]}),
            "bias_hh_l0_reverse is missing",
        ),
        "a layer left out": (
            lambda: from_torch({n.replace("_l0", "_l1"): a for n, a in lstm.items()}),
            "_l0 is missing",
        ),
        "torch-bias": (lambda: to_torch(from_torch(lstm), bias=False), "bias_ih is not 0"),
        "keras-bias": (lambda: to_keras(from_torch(lstm).cells[0], bias=False), "bias is not 0"),
        "two-gates": (lambda: from_torch(wide), "has 2 gates"),
        "ulstm": (lambda: to_torch(cell), "torch.nn has no layer that computes ULSTM"),
        "activation": (
            lambda: to_torch(hard),
            "torch.nn has no layer that computes LSTM.*hard_sigmoid",
        ),
        "reverse": (lambda: to_torch(SkipLayers([first], reverse=True)), "no layer with reverse=True"),
        "depth": (lambda: to_torch(deep), "torch.nn has no layer with a skip over depth"),
        "depth-flax": (lambda: to_flax(deep), "flax has no layer with a skip over depth"),
        "learned": (lambda: to_torch(learned), "a learned initial state that is not 0"),
        "learned-keras": (lambda: to_keras(learned), "Keras has no layer with a learned initial state"),
        "zoneout": (lambda: to_torch(zoned), "no layer with zoneout"),
        "two-transitions": (lambda: to_torch(SkipLayers([first, gru])), "one transition and one size"),
        "activation-flax": (lambda: to_flax(hard), "flax has no layer that computes LSTM"),
        "activation-keras": (lambda: to_keras(hard), "Keras has no layer that computes LSTM"),
        "reset-before": (lambda: to_torch(before), "torch.nn has no layer that computes GRU"),
        "no-rngs": (lambda: from_torch(lstm, skip=F.Dynamic(3)), "weights of Dynamic are drawn: pass rngs="),
        "flax": (lambda: from_flax({"dense": {"kernel": np.zeros((2, 2))}}), "weights of Flax's LSTM or GRU"),
        "layout": (lambda: to_flax(cell, "haiku"), "unknown layout 'haiku'"),
        "inside": (lambda: to_flax(inside), "no bias inside its reset"),
        "keras": (lambda: from_keras([np.zeros(3)]), "kernel, recurrent kernel and bias"),
        "keras-gates": (lambda: from_keras([normal(0, 3, 8), normal(0, 4, 8)]), "2 gates"),
        "keras-bidirectional": (
            lambda: from_keras([np.zeros((3, 8))] * 6),
            "6 arrays, .* use from_keras_bidirectional",
        ),
        "keras-one-direction": (
            lambda: from_keras_bidirectional(keras_layer("lstm", 1)),
            "expected the 6 arrays .* got 3",
        ),
        "keras-merged": (
            lambda: from_keras_bidirectional(keras_layer("gru", 1) * 2, config={"merge_mode": "sum"}),
            'expected merge_mode="concat", got .sum',
        ),
        "keras-two-biases": (
            lambda: from_keras([*keras_layer("lstm", 1)[:2], normal(0, 8 * HIDDEN)]),
            "weights of a CuDNN layer",
        ),
        "keras-activation": (
            lambda: from_keras(keras_layer("gru", 1), config={"recurrent_activation": "hard_sigmoid"}),
            "recurrent_activation is 'hard_sigmoid', not 'sigmoid': pass that function as gate_fn",
        ),
        "keras-backwards": (
            lambda: from_keras(keras_layer("gru", 1), config={"go_backwards": True}),
            "go_backwards=True",
        ),
        "shapes": (
            lambda: from_torch({**lstm, "weight_ih_l0": lstm["weight_ih_l0"][:8]}),
            "expected weights",
        ),
    }


@pytest.mark.parametrize("name", sorted(refusals()))
def test_what_does_not_fit_is_refused_in_one_line(name):
    make, message = refusals()[name]
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_example_in_the_docstring_runs():
    result = doctest.testmod(convert)
    assert result.attempted > 0 and result.failed == 0
