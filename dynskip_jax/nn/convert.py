"""Conversion of weights from and to the recurrent layers of PyTorch and Flax.

Weights are exchanged as arrays, so PyTorch is not imported. All readers take the options of the
cell or the layers that they make. So an agent, such as `skip=functional.Dynamic(5)`, can be added
to a trained network; `rngs` is required only if it has weights. `gate_fn` and `activation_fn` are
activations of the gates (σ by default) and of the candidate and c (tanh).
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.gru import GRUParams
from dynskip_jax.nn.base import Weights
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.layers import SkipLayers, SkipLSTM

# The order of an LSTM's four gates and of a GRU's three, of which n is the candidate. PyTorch has a
# bias on the input and one on the state for each gate. Flax has biases on the state in an LSTM, and
# on the input in a GRU; Linen's GRU has one more, inside the reset.
ORDERS = {
    4: {"torch.nn": "ifgo", "flax": "ifgo", "ours": "gifo"},
    3: {"torch.nn": "rzn", "flax": "rzn", "ours": "rzn"},
}
_FUNCTIONS = ("gate_fn", "activation_fn")
# w_x (in, gates * hidden), w_h (hidden, gates * hidden), b and b_h (gates * hidden,). The two
# biases, on the products with input and state, differ only inside a GRU's reset.
Arrays = Sequence[np.ndarray]


def from_torch(state_dict: Mapping[str, Any], **options: Any) -> SkipLSTM:
    """Return layers with the weights of a `torch.nn.LSTM` or `torch.nn.GRU`, in all layers and
    directions.

    The layers are batch-first, whatever `batch_first` was in PyTorch.

    Args:
        state_dict: `module.state_dict()`, with tensors converted to arrays (`{k: v.numpy() for k, v
            in …}`).
        **options: Options of `SkipLSTM`.
    """
    arrays = {name: np.asarray(value) for name, value in state_dict.items()}
    suffixes = ("", "_reverse") if "weight_ih_l0_reverse" in arrays else ("",)
    depth = max(1, sum(bool(re.fullmatch(r"weight_ih_l\d+", name)) for name in arrays))
    places = [f"l{layer}{suffix}" for layer in range(depth) for suffix in suffixes]
    parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if "bias_ih_l0" in arrays else ()))
    expected = {f"{part}_{place}" for part in parts for place in places}
    if wrong := sorted(expected ^ {*arrays}):
        problem = "is missing" if wrong[0] in expected else "does not belong to it"
        raise UserError(
            f"expected the state_dict of a torch.nn.LSTM or GRU without a projection: {wrong[0]} {problem}"
        )

    def of_cell(place: str) -> Arrays:
        w_x = arrays[f"weight_ih_{place}"].T
        w_h = arrays[f"weight_hh_{place}"].T
        b, b_h = (
            arrays.get(f"bias_{s}_{place}", np.zeros(w_h.shape[1], w_h.dtype)) for s in ("ih", "hh")
        )
        return _reordered((w_x, w_h, b, b_h), "torch.nn", "ours")

    make = partial(SkipLSTM, num_layers=depth, bidirectional=len(suffixes) == 2)
    return _filled(make, [of_cell(place) for place in places], options)


def to_torch(module: SkipLayers | SkipCell, *, bias: bool = True) -> dict[str, np.ndarray]:
    """Return the weights as the state dict of a `torch.nn.LSTM` or `torch.nn.GRU` of the same
    shape.

    Load it with `module.load_state_dict({k: torch.from_numpy(v) for k, v in
    to_torch(rnn).items()})`. It does not contain the weights of skips and agents. The bias here
    becomes `bias_ih`, and `bias_hh` is 0, except for the GRU's bias inside the reset. bfloat16
    becomes float32, because PyTorch reads no such arrays.

    Args:
        module: Layers or a cell with an LSTM or a GRU (reset after).
        bias: Whether the PyTorch layer has biases; False for a layer made with `bias=False`.
    """
    if getattr(module, "reverse", False):
        raise UserError("torch.nn has no layer with reverse=True: make these layers without it")
    state = {}
    ways = getattr(module, "num_directions", 1)
    for i, cell in enumerate(getattr(module, "cells", [module])):
        w_x, w_h, b, b_h = _arrays(cell, "torch.nn")
        place = f"l{i // ways}" + ("_reverse" if i % ways else "")
        state |= {f"weight_ih_{place}": w_x.T, f"weight_hh_{place}": w_h.T}
        state |= _kept(bias, {f"bias_ih_{place}": b, f"bias_hh_{place}": b_h})
    return {name: np.ascontiguousarray(array) for name, array in state.items()}


def from_flax(params: nnx.Module | Mapping[str, Any], **options: Any) -> SkipCell:
    """Make a cell with the weights of Flax's `LSTMCell`, `OptimizedLSTMCell` or `GRUCell`, NNX or
    Linen.

    Args:
        params: An NNX cell, or its state as nested dictionaries, or a Linen cell's
            `variables["params"]`. The activations of an NNX cell are read from it.
        **options: `gate_fn` and `activation_fn`, the cell's activations, and options of `SkipCell`.
    """
    if isinstance(params, nnx.Module):
        options = {name: getattr(params, name, None) for name in _FUNCTIONS} | options
        params = nnx.to_pure_dict(nnx.state(params, nnx.Param))
    found = {name.rstrip("_"): layer for name, layer in params.items()}
    order = ORDERS[4 if "ii" in found else 3]["flax"]
    names = {
        side: [f"dense_{side}"] if "dense_h" in found else [side + g for g in order]
        for side in "ih"
    }
    if not {*names["i"], *names["h"]} <= found.keys():
        raise UserError(f"expected the weights of Flax's LSTM or GRU cell, got {sorted(params)}")

    def joined(side: str, part: str) -> np.ndarray:
        layers = [found[name] for name in names[side]]
        return np.concatenate(
            [a.get(part, np.zeros(a["kernel"].shape[1])) for a in layers], axis=-1
        )

    arrays = [joined(side, part) for part in ("kernel", "bias") for side in "ih"]
    return _filled(SkipCell, [_reordered(arrays, "flax", "ours")], options)


def to_flax(cell: SkipCell, layout: str = "nnx") -> dict[str, dict[str, np.ndarray]]:
    """Return the weights of an LSTM or a GRU (reset after) as nested dictionaries for one of Flax's
    cells.

    With the layout `nnx`, they are the state of `nnx.OptimizedLSTMCell` or `nnx.GRUCell`, for
    `nnx.replace_by_pure_dict`; this GRU has no bias inside the reset, so the cell's must be 0. With
    `linen`, they are `variables["params"]` of `linen.OptimizedLSTMCell` or `linen.GRUCell`.
    """
    if layout not in ("nnx", "linen"):
        raise UserError(f"unknown layout {layout!r}: choose nnx or linen")
    w_x, w_h, b, b_h = _arrays(cell, "flax")
    order = _orders(w_h)["flax"]
    biased = "h" if len(order) == 4 else "i"  # the side with the biases
    if layout == "nnx":
        if biased == "i" and np.any(b_h):
            raise UserError(
                "nnx.GRUCell has no bias inside its reset, and this cell has: take linen's"
            )
        layers = {"dense_i": {"kernel": w_x}, "dense_h": {"kernel": w_h}}
        layers[f"dense_{biased}"]["bias"] = b
        return layers
    sides = (("i", w_x), ("h", w_h))
    layers = {
        side + g: {"kernel": w}
        for side, kernels in sides
        for g, w in _blocks(kernels, order).items()
    }
    for gate, bias in _blocks(b, order).items():
        layers[biased + gate]["bias"] = bias
    if biased == "i":
        layers["hn"]["bias"] = _blocks(b_h, order)["n"]
    return layers


def _orders(w_h: np.ndarray) -> dict[str, str]:
    """Return each library's order of the gates of a recurrent matrix, (hidden, gates * hidden)."""
    gates = w_h.shape[1] // w_h.shape[0]
    if gates not in ORDERS:
        raise UserError(
            f"recurrent weights {w_h.shape} have {gates} gates: an LSTM has 4 and a GRU 3"
        )
    return ORDERS[gates]


def _blocks(array: np.ndarray, order: str) -> dict[str, np.ndarray]:
    """Return the part of each gate of an array (…, gates * hidden)."""
    return dict(zip(order, np.split(array, len(order), axis=-1), strict=True))


def _reordered(arrays: Arrays, source: str, target: str) -> Arrays:
    """Return weights in one library's order of gates in that of another."""
    orders = _orders(arrays[1])

    def reorder(array: np.ndarray) -> np.ndarray:
        blocks = _blocks(array, orders[source])
        return np.concatenate([blocks[gate] for gate in orders[target]], axis=-1)

    return [reorder(array) for array in arrays]


def _kept(bias: bool, biases: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the biases, or none without `bias`; those have to be 0."""
    for name, array in biases.items():
        if not bias and np.any(array):
            raise UserError(f"{name} is not 0, so it cannot be left out: leave out bias=False")
    return biases if bias else {}


def _filled(make: Any, all_arrays: Sequence[Arrays], options: Mapping[str, Any]) -> Any:
    """Return the cell or the layers that `make` makes, with these weights."""
    w_x, w_h, *_ = all_arrays[0]
    functions = {name: options[name] for name in _FUNCTIONS if options.get(name) is not None}
    kind = F.LSTM if len(_orders(w_h)["ours"]) == 4 else F.GRU
    transition = kind(**functions)
    others = {name: value for name, value in options.items() if name not in _FUNCTIONS}
    made = make(len(w_x), len(w_h), transition=transition, **dict(rngs=nnx.Rngs(0)) | others)
    cells = getattr(made, "cells", [made])
    if len(cells) != len(all_arrays):
        raise UserError(
            f"weights of {len(all_arrays)} layers and directions do not fill {len(cells)}"
        )
    for cell, arrays in zip(cells, all_arrays, strict=True):
        _fill(cell, arrays, options)
    return made


def _fill(cell: SkipCell, arrays: Arrays, options: Mapping[str, Any]) -> None:
    """Set the weights of the transition of a cell; it has others only if `options` has `rngs`."""
    for piece, drawn in ((cell.skip, cell.agent), (cell.recurrence.depth_skip, cell.depth)):
        if drawn is not None and options.get("rngs") is None:
            raise UserError(
                f"the weights of {type(piece).__name__} are drawn: pass rngs=nnx.Rngs(0)"
            )
    w_x, w_h, b, b_h = arrays
    values = F.LSTMParams(w_x, w_h, b + b_h)
    if isinstance(cell.recurrence.transition, F.GRU):
        pairs = (np.split(array, [2 * len(w_h)], axis=-1) for array in arrays)
        (w_x, w_xn), (w_h, w_n), (b, b_n), (b_h, b_hn) = pairs
        values = GRUParams(w_x, w_h, b + b_h, w_xn, w_n, b_n, b_hn)
    found, expected = (jax.tree.map(np.shape, weights) for weights in (values, cell.weights.read()))
    if found != expected:
        raise UserError(f"expected weights of the shapes {expected}, got {found}")
    cell.weights = Weights(jax.tree.map(partial(jnp.asarray, dtype=cell.param_dtype), values))


def _arrays(cell: SkipCell, library: str) -> Arrays:
    """Return the weights of a cell in the order of a library that has such a cell, without its time
    skip.
    """
    if not isinstance(cell, SkipCell):
        raise UserError(f"expected a SkipCell, such as layers.cells[0], got {type(cell).__name__}")
    learned = []
    if cell.initial is not None:
        learned = jax.tree.leaves(cell.initial.read())
    transition = cell.recurrence.transition
    for what, found in (
        ("a skip over depth", cell.recurrence.depth_skip is not None),
        ("zoneout", any(cell.zoneout)),
        (
            "a learned initial state that is not 0",
            any(np.any(np.asarray(array)) for array in learned),
        ),
        (f"the transition {transition}", transition not in (F.LSTM(), F.GRU())),
    ):
        if found:
            raise UserError(f"{library} has no layer with {what}, which this cell has")

    def as_array(param: jax.Array) -> np.ndarray:
        return np.asarray(param, np.float32 if param.dtype == jnp.bfloat16 else param.dtype)

    w = jax.tree.map(as_array, cell.weights.read())
    arrays = (w.w_x, w.w_h, w.b, np.zeros_like(w.b))
    if isinstance(transition, F.GRU):
        inside = (w.w_xn, w.w_n, w.b_n, w.b_hn)
        arrays = [np.concatenate(pair, axis=-1) for pair in zip(arrays, inside, strict=True)]
    return _reordered(arrays, "ours", library)
