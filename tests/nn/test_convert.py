"""Check the conversion of weights from Flax and torch and to torch, against NumPy and Flax."""

import functools

import flax.linen as linen
import jax
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax import nn
from dynskip_jax.errors import UserError

INPUT = 3
HIDDEN = 4
BATCH = 5
TIME = 6
LENGTHS = np.array([6, 1, 3, 6, 2])


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = normal(0, BATCH, TIME, INPUT)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def outputs(*cells):
    return np.asarray(compiled(nn.SkipLayers(cells))(X).h)


def cell_of(**options):
    return drawn(lambda: nn.SkipCell(INPUT, HIDDEN, **options, rngs=nnx.Rngs(0)))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def by_hand(order, x, w_x, w_h, b=0.0, b_h=0.0, after=True):
    """Read one sequence, (time, in), in float64; the columns of weights are gates in this order."""

    def gates(array):
        blocks = np.split(np.asarray(array, float), len(order), -1)
        return dict(zip(order, blocks, strict=True))

    of_x = gates(x @ w_x + b)
    u = gates(w_h)
    of_b = gates(np.broadcast_to(b_h, w_h.shape[1]))
    h = np.zeros(HIDDEN)
    c = np.zeros(HIDDEN)
    made = []
    for t in range(len(x)):
        of_h = {gate: h @ u[gate] + of_b[gate] for gate in order}
        sigma = {gate: sigmoid(of_x[gate][t] + of_h[gate]) for gate in order}
        if "i" in order:  # an LSTM
            c = sigma["f"] * c + sigma["i"] * np.tanh(of_x["g"][t] + of_h["g"])
            h = sigma["o"] * np.tanh(c)
        else:  # a GRU, whose reset gate comes after the product or before it
            inside = sigma["r"] * of_h["n"]
            if not after:
                inside = (sigma["r"] * h) @ u["n"]
            h = (1 - sigma["z"]) * np.tanh(of_x["n"][t] + inside) + sigma["z"] * h
        made.append(h)
    return np.array(made)


# PyTorch.


def torch_state(kind, layers=1, both_ways=False, bias=True):
    """Return random weights with the names and shapes of torch's documentation."""
    gates = {"lstm": 4, "gru": 3}[kind]
    state = {}
    size = INPUT
    for layer in range(layers):
        for suffix in ("", "_reverse")[: 1 + both_ways]:
            parts = {"weight_ih": (size,), "weight_hh": (HIDDEN,), "bias_ih": (), "bias_hh": ()}
            for part, more in parts.items():
                if bias or part.startswith("weight"):
                    state[f"{part}_l{layer}{suffix}"] = normal(len(state), gates * HIDDEN, *more)
        size = HIDDEN * (1 + both_ways)
    return state


def torch_by_hand(kind, state):
    """Apply the layers of torch's documentation to each sequence of X on its own."""
    suffixes = [suffix for suffix in ("", "_reverse") if f"weight_ih_l0{suffix}" in state]
    outputs = np.zeros((BATCH, TIME, HIDDEN * len(suffixes)))
    for n, length in enumerate(LENGTHS):
        x = X[n, :length]
        for layer in range(1 + ("weight_ih_l1" in state)):
            directions = []
            for suffix in suffixes:
                place = f"l{layer}{suffix}"
                w_x = state[f"weight_ih_{place}"].T
                w_h = state[f"weight_hh_{place}"].T
                b = state.get(f"bias_ih_{place}", 0.0)
                b_h = state.get(f"bias_hh_{place}", 0.0)
                step = -1 if suffix else 1
                h = by_hand(ORDERS[kind], x[::step], w_x, w_h, b, b_h)
                directions.append(h[::step])
            x = np.concatenate(directions, axis=1)
        outputs[n, :length] = x
    return outputs


ORDERS = {"lstm": "ifgo", "gru": "rzn"}
KINDS = [
    (kind, layers, both)
    for kind in ("lstm", "gru")
    for layers, both in ((1, False), (2, False), (2, True))
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
    stack = nn.from_torch(state)
    expected = torch_by_hand(kind, state)
    # Past the end of a sequence, outputs are zeros.
    close(compiled(stack)(X, seq_lengths=LENGTHS).h, expected)
    back = nn.to_torch(stack, bias=bias)

    # What goes back has the names and shapes of torch, and is the same when it comes again.
    shapes = {name: array.shape for name, array in state.items()}
    assert {name: array.shape for name, array in back.items()} == shapes
    close(torch_by_hand(kind, back), expected)
    jax.tree.map(np.testing.assert_array_equal, nn.to_torch(nn.from_torch(back), bias=bias), back)


def test_an_agent_is_put_into_a_trained_network():
    state = torch_state("lstm")
    stack = nn.from_torch(state, skip=F.Dynamic(3, mix=0.0), rngs=nnx.Rngs(1))
    out = compiled(stack)(X, seq_lengths=LENGTHS, rngs=jax.random.key(0))
    # With λ = 0 the choices have no effect, so the outputs are those of the trained network.
    close(out.h, torch_by_hand("lstm", state))
    assert set(np.unique(out.decisions[0].action)) == {0, 1, 2, 3}
    other = nn.from_torch(state, skip=F.Dynamic(3), rngs=nnx.Rngs(2))
    assert not np.allclose(stack.cells[0].agent.w_h[...], other.cells[0].agent.w_h[...])
    # Random skips have no weights to draw.
    assert nn.from_torch(state, skip=F.Random(3)).skips == (F.Random(3),)


def test_bfloat16_goes_to_torch_as_float32():
    """Regression: `torch.from_numpy` refuses arrays of bfloat16."""
    written = nn.to_torch(cell_of(param_dtype="bfloat16"))
    assert {array.dtype for array in written.values()} == {np.dtype("f4")}


# Flax.

FLAX_CELLS = {"lstm": nnx.LSTMCell, "optimized": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}


@nnx.jit
@functools.partial(nnx.grad, argnums=1, has_aux=True)
def with_gradient(layer, x):
    """Return the gradient of a function of the outputs in the inputs, and the outputs."""
    h = layer(x)
    if isinstance(layer, nn.SkipLayers):
        h = h.h
    return jax.numpy.sin(h).sum(), h


@pytest.mark.parametrize("name", FLAX_CELLS)
def test_flaxs_cells(name):
    theirs = drawn(lambda: FLAX_CELLS[name](INPUT, HIDDEN, rngs=nnx.Rngs(3)))
    cell = nn.from_flax(theirs)
    both = (with_gradient(layer, X) for layer in (nn.SkipLayers([cell]), nnx.RNN(theirs)))
    jax.tree.map(close, *both)


@pytest.mark.parametrize("name", and_slow(FLAX_CELLS, lambda name: name == "gru"))
def test_flaxs_cells_with_other_activations(name):
    functions = dict(gate_fn=jax.nn.hard_sigmoid, activation_fn=jax.nn.relu)
    theirs = drawn(lambda: FLAX_CELLS[name](INPUT, HIDDEN, **functions, rngs=nnx.Rngs(3)))
    read = nn.from_flax(theirs)
    told = nn.from_flax(nnx.to_pure_dict(nnx.state(theirs, nnx.Param)), **functions)
    assert read.recurrence == told.recurrence
    close(outputs(read), compiled(nnx.RNN(theirs))(X))


@pytest.mark.parametrize(
    "name", and_slow(["LSTMCell", "OptimizedLSTMCell", "GRUCell"], "GRUCell".__eq__)
)
def test_linens_cells(name):
    theirs = linen.RNN(getattr(linen, name)(HIDDEN, bias_init=nnx.initializers.normal(1.0)))
    shapes = jax.eval_shape(theirs.init, jax.random.key(0), X)
    variables = jax.tree.map(lambda leaf: normal(4, *leaf.shape), shapes)
    (params,) = variables["params"].values()
    cell = nn.from_flax(params)
    close(outputs(cell), jax.jit(theirs.apply)(variables, X))


# What does not fit.


@functools.cache
def refused():
    """Return calls that raise an error, each with a part of its message."""
    state = torch_state("lstm")
    of_torch = nn.from_torch(state).cells[0]
    hard = cell_of(transition=F.LSTM(gate_fn=nnx.hard_sigmoid))
    deep = cell_of(depth_skip=F.ToOutput())
    reverse = nn.SkipLayers([of_torch], reverse=True)
    zoned = cell_of(zoneout=0.5)
    two_gates = {"weight_hh_l0": normal(0, 8, HIDDEN), "weight_ih_l0": normal(0, 8, INPUT)}
    return {
        "nothing": (lambda: nn.from_torch({}), "weight_hh_l0 is missing"),
        "one direction": (
            lambda: nn.from_torch({**state, "weight_ih_l0_reverse": 0}),
            "reverse is missing",
        ),
        "two gates": (lambda: nn.from_torch(two_gates), "have 2 gates"),
        "shapes": (
            lambda: nn.from_torch({**state, "weight_ih_l0": normal(0, 8, 3)}),
            "expected weights",
        ),
        "no rngs": (lambda: nn.from_torch(state, skip=F.Dynamic(3)), "are drawn: pass rngs="),
        "torch bias": (lambda: nn.to_torch(of_torch, bias=False), "bias_ih_l0 is not 0"),
        "activation": (lambda: nn.to_torch(hard), "with the transition LSTM.*hard_sigmoid"),
        "reverse": (lambda: nn.to_torch(reverse), "no layer with reverse=True"),
        "depth": (lambda: nn.to_torch(deep), "torch.nn has no layer with a skip over depth"),
        "zoneout": (lambda: nn.to_torch(zoned), "no layer with zoneout"),
    }


@pytest.mark.parametrize("name", refused())
def test_what_does_not_fit_is_refused_in_one_line(name):
    make, message = refused()[name]
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
