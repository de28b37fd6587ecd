"""Conversion of weights from and to the recurrent layers of PyTorch, Flax and Keras.

Weights are exchanged as arrays, so neither PyTorch nor Keras is imported. All readers take a time skip, such
as `functional.Dynamic(5)`, which is added to the trained network; `rngs`, required only if this skip has
weights; and further options of the cell or the layers that they make. `gate_fn` and `activation_fn` are the
other layer's activations of the gates (σ by default) and of the candidate and c (tanh). Weights that are not
those of a known layer, and cells that the other library does not have, are a `UserError`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.base import Activation
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.layers import SkipLayers, SkipLSTM

ArrayLike = Any

# The gates in each library's order; n of a GRU is its candidate. PyTorch has a bias on the input and one on
# the state for each gate; Keras likewise in a GRU that resets after the product, and otherwise one bias. Flax
# has biases on the state in an LSTM, and on the input in a GRU; Linen's GRU has one more, inside the reset.
ORDERS = {
    "torch.nn": {"lstm": "ifgo", "gru": "rzn"},
    "Keras": {"lstm": "ifgo", "gru": "zrn"},
    "flax": {"lstm": "ifgo", "gru": "rzn"},
    "ours": {"lstm": "gifo", "gru": "rz"},
}
_KINDS = {4: "lstm", 3: "gru"}  # by the number of gates
_zeros = nnx.initializers.zeros_init()
# Weights that are overwritten are zero at first; an agent's are drawn.
_INIT = dict(
    kernel_init=_zeros, recurrent_kernel_init=_zeros, agent_kernel_init=nnx.initializers.lecun_normal()
)


class Gates(NamedTuple):
    """Weights of an LSTM or a GRU, by gate: `w_x["i"]` is the matrix from the input to the gate i.

    Attributes:
        kind: `lstm` or `gru`.
        w_x: Matrices on the input, (in, hidden).
        w_h: Matrices on the state, (hidden, hidden).
        b: Biases, (hidden,).
        b_h: Biases on the product with the state, (hidden,), which differ from `b` only inside a reset.
    """

    kind: str
    w_x: dict[str, np.ndarray]
    w_h: dict[str, np.ndarray]
    b: dict[str, np.ndarray]
    b_h: dict[str, np.ndarray]

    @classmethod
    def of(cls, library: str, kind: str, *arrays: ArrayLike) -> "Gates":
        """Return the gates in w_x, w_h, b and b_h, whose last axes have the library's order."""
        order = ORDERS[library][kind]
        return cls(kind, *(dict(zip(order, np.split(a, len(order), -1), strict=True)) for a in arrays))

    def joined(self, library: str) -> list[np.ndarray]:
        """Return w_x, w_h, b and b_h in the library's order: the inverse of `of`."""
        order = ORDERS[library][self.kind]
        return [np.concatenate([blocks[gate] for gate in order], axis=-1) for blocks in self[1:]]


def from_torch(
    state_dict: Mapping[str, ArrayLike],
    *,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **options: Any,
) -> SkipLSTM:
    """Return layers with the weights of a `torch.nn.LSTM` or `torch.nn.GRU`, in all layers and directions.

    The layers are batch-first, whatever `batch_first` was in PyTorch.

    Args:
        state_dict: `module.state_dict()`, with tensors converted to arrays (`{k: v.numpy() for k, v in …}`).

    Example::

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> state = {"weight_ih_l0": rng.normal(size=(32, 3)), "weight_hh_l0": rng.normal(size=(32, 8)),
        ...          "bias_ih_l0": np.zeros(32), "bias_hh_l0": np.zeros(32)}
        >>> rnn = from_torch(state)
        >>> rnn(jnp.ones((2, 5, 3))).h.shape
        (2, 5, 8)
    """
    arrays = {name: np.asarray(value) for name, value in state_dict.items()}
    if not arrays or not all(re.fullmatch(r"(weight|bias)_(ih|hh)_l\d+(_reverse)?", n) for n in arrays):
        raise UserError(
            "expected the state_dict of a torch.nn.LSTM or GRU (weight_ih_l0, …, without a projection), "
            f"got {', '.join(sorted(arrays)[:4]) or 'nothing'}"
        )
    suffixes = ("", "_reverse") if "weight_ih_l0_reverse" in arrays else ("",)
    depth = len({re.search(r"_l(\d+)", name)[1] for name in arrays})
    places = [f"l{layer}{suffix}" for layer in range(depth) for suffix in suffixes]
    parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if "bias_ih_l0" in arrays else ()))
    expected = {f"{part}_{place}" for part in parts for place in places}
    if set(arrays) != expected:
        missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected)
        problem = f"{missing[0]} is missing" if missing else f"{unknown[0]} does not belong to it"
        raise UserError(f"the state_dict is not that of one torch.nn.LSTM or GRU: {problem}")
    kind = _kind(arrays["weight_hh_l0"].T, "weight_hh_l0")

    def gates(place: str) -> Gates:
        w_x, w_h = arrays[f"weight_ih_{place}"].T, arrays[f"weight_hh_{place}"].T
        b, b_h = (arrays.get(f"bias_{s}_{place}", np.zeros(w_h.shape[1], w_h.dtype)) for s in ("ih", "hh"))
        return Gates.of("torch.nn", kind, w_x, w_h, b, b_h)

    return _layers([gates(place) for place in places], len(suffixes), _transition(kind), skip, rngs, options)


def to_torch(module: SkipLayers | SkipCell, *, bias: bool = True) -> dict[str, np.ndarray]:
    """Return the weights as the state dict of a `torch.nn.LSTM` or `torch.nn.GRU` of the same shape.

    Load it with `module.load_state_dict({k: torch.from_numpy(v) for k, v in to_torch(rnn).items()})`. It does
    not contain the weights of skips and agents. The bias here becomes `bias_ih`, and `bias_hh` is 0, except
    for the GRU's bias inside the reset. bfloat16 becomes float32, because PyTorch reads no such arrays.

    Args:
        module: Layers or a cell with an LSTM or a GRU (reset after).
        bias: Whether the PyTorch layer has biases; False for a layer made with `bias=False`.
    """
    cells, ways = [module], 1
    if isinstance(module, SkipLayers):
        cells, ways = module.cells, module.num_directions
        if module.reverse:
            raise UserError("torch.nn has no layer with reverse=True: make these layers without it")
    if len({(cell.recurrence.transition, cell.hidden_features) for cell in cells}) > 1:
        raise UserError("torch.nn has one transition and one size for all layers, and these have several")
    state = {}
    for i, cell in enumerate(cells):
        w_x, w_h, *biases = _gates(cell, "torch.nn").joined("torch.nn")
        place = f"l{i // ways}" + ("_reverse" if i % ways else "")
        state |= {f"weight_ih_{place}": w_x.T, f"weight_hh_{place}": w_h.T}
        biases = dict(zip(("bias_ih", "bias_hh"), biases, strict=True))
        if bias:
            state |= {f"{name}_{place}": array for name, array in biases.items()}
        else:
            _check_zero(**biases)
    return {name: np.ascontiguousarray(array) for name, array in state.items()}


def from_flax(
    params: nnx.Module | Mapping[str, Any],
    *,
    gate_fn: Activation | None = None,
    activation_fn: Activation | None = None,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **options: Any,
) -> SkipCell:
    """Make a cell with the weights of Flax's `LSTMCell`, `OptimizedLSTMCell` or `GRUCell`, NNX or Linen.

    Args:
        params: An NNX cell, or its state as nested dictionaries, or a Linen cell's `variables["params"]`. The
            activations of an NNX cell are read from it.
    """
    functions = dict(gate_fn=gate_fn, activation_fn=activation_fn)
    if isinstance(params, nnx.Module):
        functions = {name: given or getattr(params, name, None) for name, given in functions.items()}
        params = nnx.to_pure_dict(nnx.state(params, nnx.Param))
    found = {name.rstrip("_"): layer for name, layer in params.items()}
    kind = "lstm" if "ii" in found else "gru"
    if "dense_h" in found:
        kind = _kind(found["dense_h"]["kernel"], "dense_h")
    names = {side: [side + gate for gate in ORDERS["flax"][kind]] for side in "ih"}
    names = {side: [f"dense_{side}"] if f"dense_{side}" in found else names[side] for side in "ih"}
    if not {*names["i"], *names["h"]} <= found.keys():
        raise UserError(
            f"expected the weights of Flax's LSTM or GRU cell, got {', '.join(sorted(params)) or 'none'}"
        )

    def joined(side: str, part: str) -> np.ndarray:
        layers = [found[name] for name in names[side]]
        return np.concatenate([a.get(part, np.zeros(a["kernel"].shape[1])) for a in layers], axis=-1)

    gates = Gates.of("flax", kind, *(joined(side, part) for part in ("kernel", "bias") for side in "ih"))
    transition = dataclasses.replace(_transition(kind), **{n: f for n, f in functions.items() if f})
    return _cell(gates, transition, skip, rngs, options)


def to_flax(cell: SkipCell, layout: str = "nnx") -> dict[str, dict[str, np.ndarray]]:
    """Return the weights as nested dictionaries for one of Flax's cells.

    Args:
        cell: Cell with an LSTM or a GRU (reset after).
        layout: `nnx`: the state of `nnx.OptimizedLSTMCell` or `nnx.GRUCell`, for `nnx.replace_by_pure_dict`.
            `linen`: `variables["params"]` of `linen.OptimizedLSTMCell` or `linen.GRUCell`.

    Flax's NNX GRU has no bias inside the reset, so this bias must be 0 there.
    """
    if layout not in ("nnx", "linen"):
        raise UserError(f"unknown layout {layout!r}: choose nnx or linen")
    gates = _gates(cell, "flax")
    biased = "h" if gates.kind == "lstm" else "i"  # the side with the biases
    if layout == "nnx":
        if gates.kind == "gru" and np.any(gates.b_h["n"]):
            raise UserError(
                "nnx.GRUCell has no bias inside its reset, and this cell's is not 0: take linen's"
            )
        w_x, w_h, b, _ = gates.joined("flax")
        layers = {"dense_i": {"kernel": w_x}, "dense_h": {"kernel": w_h}}
        layers[f"dense_{biased}"]["bias"] = b
        return layers
    layers = {}
    for side, kernels in (("i", gates.w_x), ("h", gates.w_h)):
        layers |= {side + gate: {"kernel": kernels[gate]} for gate in ORDERS["flax"][gates.kind]}
    for gate, b in gates.b.items():
        layers[biased + gate]["bias"] = b
    if gates.kind == "gru":
        layers["hn"]["bias"] = gates.b_h["n"]
    return layers


def from_keras(
    weights: Sequence[ArrayLike],
    *,
    config: Mapping[str, Any] | None = None,
    gate_fn: Activation | None = None,
    activation_fn: Activation | None = None,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **options: Any,
) -> SkipCell:
    """Make a cell with the weights of Keras' `LSTM` or `GRU` layer, with `reset_after` or without.

    Args:
        weights: `layer.get_weights()`: kernel, recurrent kernel and, unless `use_bias=False`, bias.
        config: `layer.get_config()`. It is used to check options that the weights do not show, such as the
            activations. None checks nothing.
    """
    return _cell(*_read_keras(weights, config or {}, gate_fn, activation_fn), skip, rngs, options)


def from_keras_bidirectional(
    weights: Sequence[ArrayLike],
    *,
    config: Mapping[str, Any] | None = None,
    gate_fn: Activation | None = None,
    activation_fn: Activation | None = None,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **options: Any,
) -> SkipLSTM:
    """Make a layer with the weights of Keras' `Bidirectional(LSTM(...))` or `Bidirectional(GRU(...))`.

    The output concatenates both directions, as with `merge_mode="concat"`. The arguments are those of
    `from_keras`, with the arrays of the forward layer before those of the backward layer, and `options` of
    `SkipLSTM`.
    """
    config = config or {}
    if config.get("merge_mode", "concat") != "concat":
        raise UserError(
            f'expected merge_mode="concat", got {config["merge_mode"]!r}: merge the two halves of the output '
            "yourself, and pass config without merge_mode"
        )
    if len(weights) not in (4, 6):
        raise UserError(
            f"expected the 6 arrays of a Bidirectional layer (4 without biases), got {len(weights)}: for a "
            "layer of one direction use from_keras"
        )
    half = len(weights) // 2
    own = {**config.get("layer", {}).get("config", {}), "go_backwards": False}
    forward, transition = _read_keras(weights[:half], own, gate_fn, activation_fn)
    backward, _ = _read_keras(weights[half:], own, gate_fn, activation_fn)
    return _layers([forward, backward], 2, transition, skip, rngs, options)


def to_keras(cell: SkipCell, *, bias: bool = True) -> list[np.ndarray]:
    """Return the weights for `set_weights` of Keras' `LSTM` or `GRU`.

    Set `reset_after=True` in the Keras GRU if this cell resets after the product, and False otherwise.

    Args:
        cell: Cell with an LSTM or a GRU.
        bias: Whether the Keras layer has biases; False for a layer made with `use_bias=False`.
    """
    w_x, w_h, b, b_h = _gates(cell, "Keras").joined("Keras")
    if cell.recurrence.transition == F.GRU("after"):
        b = np.stack([b, b_h])
    if bias:
        return [w_x, w_h, b]
    _check_zero(bias=b)
    return [w_x, w_h]


def _read_keras(
    weights: Sequence[ArrayLike],
    config: Mapping[str, Any],
    gate_fn: Activation | None,
    activation_fn: Activation | None,
) -> tuple[Gates, F.Transition]:
    arrays = [np.asarray(array) for array in weights]
    if len(arrays) in (4, 6):
        raise UserError(
            f"got {len(arrays)} arrays, as many as a Bidirectional layer has: use from_keras_bidirectional"
        )
    if len(arrays) not in (2, 3) or arrays[1].ndim != 2:
        raise UserError(
            f"expected kernel, recurrent kernel and bias of a Keras layer, got {len(arrays)} arrays"
        )
    kernel, recurrent = arrays[:2]
    kind, width = _kind(recurrent, "the recurrent kernel"), recurrent.shape[1]
    after = kind == "gru" and config.get("reset_after", True)
    bias = arrays[2] if len(arrays) == 3 else np.zeros((2, width) if after else width, kernel.dtype)
    shapes = [(width,), (2, width)] if kind == "gru" else [(width,)]
    if kernel.ndim != 2 or kernel.shape[1] != width or bias.shape not in shapes:
        raise UserError(
            f"expected a kernel of shape (inputs, {width}) and a bias of {' or '.join(map(str, shapes))}, "
            f"got {kernel.shape} and {bias.shape}: load weights of a CuDNN layer into another layer of Keras "
            "first"
        )
    functions = {}
    for name, expected, argument, given in (
        ("recurrent_activation", "sigmoid", "gate_fn", gate_fn),
        ("activation", "tanh", "activation_fn", activation_fn),
    ):
        if config.get(name, expected) != expected and given is None:
            raise UserError(
                f"the layer's {name} is {config[name]!r}, not {expected!r}: pass that function as {argument} "
                "(hard_sigmoid is jax.nn.hard_sigmoid in Keras 3, and clip(0.2 x + 0.5, 0, 1) in Keras 2)"
            )
        functions |= {} if given is None else {argument: given}
    if config.get("go_backwards"):
        raise UserError(
            "the layer has go_backwards=True, and a cell reads from the start: reverse the inputs, and pass "
            "config without go_backwards"
        )
    transition = F.LSTM() if kind == "lstm" else F.GRU("after" if bias.ndim == 2 else "before")
    b, b_h = bias if bias.ndim == 2 else (bias, np.zeros_like(bias))
    gates = Gates.of("Keras", kind, kernel, recurrent, b, b_h)
    return gates, dataclasses.replace(transition, **functions)


def _kind(recurrent: ArrayLike, name: str) -> str:
    """Return whether a matrix (hidden, gates * hidden) is that of an LSTM or of a GRU."""
    gates = recurrent.shape[1] // recurrent.shape[0]
    if gates not in _KINDS:
        raise UserError(f"{name} has {gates} gates: an LSTM has 4 and a GRU 3")
    return _KINDS[gates]


def _transition(kind: str) -> F.Transition:
    return F.LSTM() if kind == "lstm" else F.GRU("after")


def _check_zero(**biases: np.ndarray) -> None:
    """Raise a `UserError` if a bias is not 0, because then it cannot be omitted."""
    for name, array in biases.items():
        if np.any(array):
            raise UserError(f"{name} is not 0, so it cannot be left out: leave out bias=False")


def _checked(skip: F.TimeSkip, rngs: nnx.Rngs | None) -> nnx.Rngs:
    """Return `rngs`; without them, any, if the skip has no weights to draw."""
    weights = jax.eval_shape(lambda key: skip.init(key, 1, 1, 1, F.Initializers()), jax.random.key(0))
    if rngs is None and jax.tree.leaves(weights):
        raise UserError(f"the weights of {type(skip).__name__} are drawn: pass rngs=nnx.Rngs(0)")
    return nnx.Rngs(0) if rngs is None else rngs


def _cell(gates: Gates, transition, skip, rngs, options: dict[str, Any]) -> SkipCell:
    sizes = next(iter(gates.w_x.values())).shape
    options = {**_INIT, **options}
    cell = SkipCell(*sizes, skip, transition=transition, **options, rngs=_checked(skip, rngs))
    _fill(cell, gates)
    return cell


def _layers(all_gates: list[Gates], ways: int, transition, skip, rngs, options) -> SkipLSTM:
    sizes = next(iter(all_gates[0].w_x.values())).shape
    own = options.pop("cell", {})
    layers = SkipLSTM(
        *sizes,
        num_layers=len(all_gates) // ways,
        skip=skip,
        transition=transition,
        bidirectional=ways == 2,
        cell=_INIT | own if isinstance(own, Mapping) else [_INIT | each for each in own],
        rngs=_checked(skip, rngs),
        **options,
    )
    for cell, gates in zip(layers.cells, all_gates, strict=True):
        _fill(cell, gates)
    return layers


def _fill(cell: SkipCell, gates: Gates) -> None:
    """Set the weights of a cell."""
    w_x, w_h, b, b_h = gates.joined("ours")
    values = {"w_x": w_x, "w_h": w_h, "b": b + b_h}
    if gates.kind == "gru":
        values |= {"w_xn": gates.w_x["n"], "w_n": gates.w_h["n"]}
        after = cell.recurrence.transition.reset == "after"
        inside = {"b_n": gates.b["n"], "b_hn": gates.b_h["n"]}
        values |= inside if after else {"b_n": gates.b["n"] + gates.b_h["n"]}
    for name, value in values.items():
        param = getattr(cell.weights, name)
        if param.shape != value.shape:
            raise UserError(f"expected weights {param.shape}, got {value.shape}")
        param[...] = jnp.asarray(value, param.dtype)


def _gates(cell: SkipCell, library: str) -> Gates:
    """Return the weights of a cell by gate: the inverse of `_fill`.

    Raises:
        UserError: The library has no layer that computes what the cell does without its time skip.
    """
    learned = [] if cell.initial is None else jax.tree.leaves(cell.initial.read())
    for what, found in (
        ("a skip over depth", cell.recurrence.depth_skip is not None),
        ("zoneout", any(cell.zoneout)),
        ("a learned initial state that is not 0", any(np.any(np.asarray(array)) for array in learned)),
    ):
        if found:
            raise UserError(f"{library} has no layer with {what}, which this cell has")
    transition = cell.recurrence.transition
    known = {F.LSTM(): "lstm", F.GRU("after"): "gru"} | (
        {F.GRU("before"): "gru"} if library == "Keras" else {}
    )
    if transition not in known:
        raise UserError(f"{library} has no layer that computes {transition}")
    weights = jax.tree.map(_array, cell.weights.read())
    b_h = np.zeros_like(weights.b)
    gates = Gates.of("ours", known[transition], weights.w_x, weights.w_h, weights.b, b_h)
    if gates.kind == "gru":
        gates.w_x["n"], gates.w_h["n"], gates.b["n"] = weights.w_xn, weights.w_n, weights.b_n
        gates.b_h["n"] = np.zeros_like(weights.b_n) if weights.b_hn is None else weights.b_hn
    return gates


def _array(param: jax.Array) -> np.ndarray:
    array = np.asarray(param)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array
