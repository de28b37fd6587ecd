"""Conversion of weights from the recurrent layers of PyTorch and Flax, and to those of PyTorch.

Weights are exchanged as arrays, so PyTorch is not imported. All readers take the options of the
cell or the layers that they make. So an agent, such as `skip=functional.Dynamic(5)`, can be added
to a trained network; `rngs` is required only if it has weights. `gate_fn` and `activation_fn` are
activations of the gates (σ by default) and of the candidate and c (tanh).
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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

# The order of gates in matrices, by the number of gates: an LSTM has four and a GRU three, of which
# n is the candidate. PyTorch has a bias on the input and one on the state for each gate. Flax has
# biases on the state in an LSTM, and on the input in a GRU; Linen's GRU has one more, inside the
# reset.
ORDERS = {
    4: {"torch.nn": "ifgo", "flax": "ifgo", "ours": "gifo"},
    3: {"torch.nn": "rzn", "flax": "rzn", "ours": "rzn"},
}
_FUNCTIONS = ("gate_fn", "activation_fn")


class CellArrays(NamedTuple):
    """Weights of a cell, with the blocks of its gates side by side."""

    w_x: np.ndarray  # (in, gates * hidden)
    w_h: np.ndarray  # (hidden, gates * hidden)
    b: np.ndarray  # added to the product with the input, (gates * hidden,)
    b_h: np.ndarray  # added to that with the state; it matters only inside a GRU's reset


def from_torch(state_dict: Mapping[str, Any], **options: Any) -> SkipLSTM:
    """Return layers with all weights of a `torch.nn.LSTM` or `torch.nn.GRU`.

    The layers are batch-first, whatever `batch_first` was in PyTorch.

    Args:
        state_dict: `module.state_dict()`, with tensors converted to arrays (`{k: v.numpy() for k, v
            in …}`).
    """
    arrays = {name: np.asarray(value) for name, value in state_dict.items()}
    suffixes = ["", "_reverse"]
    if "weight_ih_l0_reverse" not in arrays:
        suffixes = [""]
    parts = ["weight_ih", "weight_hh"]
    if "bias_ih_l0" in arrays:
        parts += ["bias_ih", "bias_hh"]
    depth = max(1, sum(bool(re.fullmatch(r"weight_ih_l\d+", name)) for name in arrays))

    # The cells in our order: the forward and the backward one of each layer.
    places = [f"l{layer}{suffix}" for layer in range(depth) for suffix in suffixes]
    expected = {f"{part}_{place}" for part in parts for place in places}
    if wrong := sorted(expected ^ {*arrays}):
        problem = "is missing" if wrong[0] in expected else "does not belong to it"
        raise UserError(
            "expected the state_dict of a torch.nn.LSTM or GRU without a projection: "
            f"{wrong[0]} {problem}"
        )

    def read_cell(place: str) -> CellArrays:
        # PyTorch multiplies by the transposed matrices.
        w_x = arrays[f"weight_ih_{place}"].T
        w_h = arrays[f"weight_hh_{place}"].T
        no_bias = np.zeros(w_h.shape[1], w_h.dtype)
        b = arrays.get(f"bias_ih_{place}", no_bias)
        b_h = arrays.get(f"bias_hh_{place}", no_bias)
        return _reordered(CellArrays(w_x, w_h, b, b_h), "torch.nn", "ours")

    make = partial(SkipLSTM, num_layers=depth, bidirectional=len(suffixes) == 2)
    return _filled(make, [read_cell(place) for place in places], options)


def to_torch(module: SkipLayers | SkipCell, *, bias: bool = True) -> dict[str, np.ndarray]:
    """Return the weights as the state dict of a `torch.nn.LSTM` or `torch.nn.GRU`.

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
    cells = [module]
    num_directions = 1
    if isinstance(module, SkipLayers):
        cells = module.cells
        num_directions = module.num_directions

    # PyTorch multiplies by the transposed matrices.
    state = {}
    for i, cell in enumerate(cells):
        w_x, w_h, b, b_h = _arrays(cell)
        place = f"l{i // num_directions}"
        if i % num_directions:
            place += "_reverse"
        state |= {f"weight_ih_{place}": w_x.T, f"weight_hh_{place}": w_h.T}
        state |= _kept(bias, {f"bias_ih_{place}": b, f"bias_hh_{place}": b_h})
    return {name: np.ascontiguousarray(array) for name, array in state.items()}


def from_flax(params: nnx.Module | Mapping[str, Any], **options: Any) -> SkipCell:
    """Make a cell with the weights of an LSTM or GRU cell of Flax, NNX or Linen.

    These are `LSTMCell`, `OptimizedLSTMCell` and `GRUCell`.

    Args:
        params: An NNX cell, or its state as nested dictionaries, or a Linen cell's
            `variables["params"]`. The activations of an NNX cell are read from it.
        **options: `gate_fn` and `activation_fn`, the cell's activations, and options of `SkipCell`.
    """
    if isinstance(params, nnx.Module):
        options = {name: getattr(params, name, None) for name in _FUNCTIONS} | options
        params = nnx.to_pure_dict(nnx.state(params, nnx.Param))
    found = {name.rstrip("_"): layer for name, layer in params.items()}

    # A cell has one matrix of all gates on each side, the input's and the state's, or one for each
    # gate. Only an LSTM has an input gate, whose matrix on the input is `ii`.
    order = ORDERS[4 if "ii" in found else 3]["flax"]
    if "dense_h" in found:
        names = {side: [f"dense_{side}"] for side in "ih"}
    else:
        names = {side: [side + gate for gate in order] for side in "ih"}
    if not {*names["i"], *names["h"]} <= found.keys():
        raise UserError(f"expected the weights of Flax's LSTM or GRU cell, got {sorted(params)}")

    def joined(side: str, part: str) -> np.ndarray:
        blocks = []
        for name in names[side]:
            # A matrix without a bias has one of 0.
            no_bias = np.zeros(found[name]["kernel"].shape[1])
            blocks.append(found[name].get(part, no_bias))
        return np.concatenate(blocks, axis=-1)

    arrays = CellArrays(
        w_x=joined("i", "kernel"),
        w_h=joined("h", "kernel"),
        b=joined("i", "bias"),
        b_h=joined("h", "bias"),
    )
    return _filled(SkipCell, [_reordered(arrays, "flax", "ours")], options)


def _orders(w_h: np.ndarray) -> dict[str, str]:
    """Return each library's order of the gates of a recurrent matrix, (hidden, gates * hidden)."""
    # The number of gates tells an LSTM from a GRU.
    gates = w_h.shape[1] // w_h.shape[0]
    if gates not in ORDERS:
        raise UserError(
            f"recurrent weights {w_h.shape} have {gates} gates: an LSTM has 4 and a GRU 3"
        )
    return ORDERS[gates]


def _blocks(array: np.ndarray, order: str) -> dict[str, np.ndarray]:
    """Return the part of each gate of an array (…, gates * hidden)."""
    return dict(zip(order, np.split(array, len(order), axis=-1), strict=True))


def _reordered(arrays: CellArrays, source: str, target: str) -> CellArrays:
    """Return weights in one library's order of gates in that of another."""
    orders = _orders(arrays.w_h)

    def reorder(array: np.ndarray) -> np.ndarray:
        blocks = _blocks(array, orders[source])
        return np.concatenate([blocks[gate] for gate in orders[target]], axis=-1)

    return CellArrays(*map(reorder, arrays))


def _kept(bias: bool, biases: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the biases, or none without `bias`; those have to be 0."""
    for name, array in biases.items():
        # A layer without biases would compute something else.
        if not bias and np.any(array):
            raise UserError(f"{name} is not 0, so it cannot be left out: leave out bias=False")
    if not bias:
        return {}
    return biases


def _filled(make: Any, all_arrays: Sequence[CellArrays], options: Mapping[str, Any]) -> Any:
    """Return the cell or the layers that `make` makes, with these weights."""
    first = all_arrays[0]
    kind = F.LSTM if len(_orders(first.w_h)["ours"]) == 4 else F.GRU
    functions = {name: options[name] for name in _FUNCTIONS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in _FUNCTIONS}

    # The seed has no effect: all weights that are drawn are replaced, or refused by `_fill`.
    others = dict(rngs=nnx.Rngs(0)) | others
    made = make(len(first.w_x), len(first.w_h), transition=kind(**functions), **others)
    cells = getattr(made, "cells", [made])
    if len(cells) != len(all_arrays):
        raise UserError(
            f"weights of {len(all_arrays)} layers and directions do not fill {len(cells)}"
        )
    for cell, arrays in zip(cells, all_arrays, strict=True):
        _fill(cell, arrays, options)
    return made


def _fill(cell: SkipCell, arrays: CellArrays, options: Mapping[str, Any]) -> None:
    """Set the weights of the transition of a cell; it has others only if `options` has `rngs`."""
    # Weights of skips would be those of a seed that the user has not chosen.
    for piece, drawn in ((cell.skip, cell.agent), (cell.recurrence.depth_skip, cell.depth)):
        if drawn is not None and options.get("rngs") is None:
            raise UserError(
                f"the weights of {type(piece).__name__} are drawn: pass rngs=nnx.Rngs(0)"
            )

    if isinstance(cell.recurrence.transition, F.GRU):
        # The two gates come first, and the candidate last, whose biases stay apart.
        split = [np.split(array, [2 * len(arrays.w_h)], axis=-1) for array in arrays]
        gates = CellArrays(*(block for block, _ in split))
        candidate = CellArrays(*(block for _, block in split))
        values = GRUParams(gates.w_x, gates.w_h, gates.b + gates.b_h, *candidate)
    else:
        values = F.LSTMParams(arrays.w_x, arrays.w_h, arrays.b + arrays.b_h)
    found = jax.tree.map(np.shape, values)
    expected = jax.tree.map(np.shape, cell.weights.read())
    if found != expected:
        raise UserError(f"expected weights of the shapes {expected}, got {found}")
    cell.weights = Weights(jax.tree.map(partial(jnp.asarray, dtype=cell.param_dtype), values))


def _arrays(cell: SkipCell) -> CellArrays:
    """Return the weights of a cell, without its time skip, in PyTorch's order of gates."""
    if not isinstance(cell, SkipCell):
        raise UserError(f"expected a SkipCell, such as layers.cells[0], got {type(cell).__name__}")
    transition = cell.recurrence.transition
    for feature, is_used in (
        ("a skip over depth", cell.recurrence.depth_skip is not None),
        ("zoneout", any(cell.zoneout)),
        ("a learned initial state", cell.initial is not None),
        (f"the transition {transition}", transition not in (F.LSTM(), F.GRU())),
    ):
        if is_used:
            raise UserError(f"torch.nn has no layer with {feature}, which this cell has")

    def as_array(param: jax.Array) -> np.ndarray:
        # NumPy and PyTorch have no arrays of bfloat16 in common.
        return np.asarray(param, np.float32 if param.dtype == jnp.bfloat16 else param.dtype)

    params = jax.tree.map(as_array, cell.weights.read())
    arrays = CellArrays(params.w_x, params.w_h, params.b, np.zeros_like(params.b))
    if isinstance(transition, F.GRU):
        candidate = CellArrays(params.w_xn, params.w_n, params.b_n, params.b_hn)
        pairs = zip(arrays, candidate, strict=True)
        arrays = CellArrays(*(np.concatenate(pair, axis=-1) for pair in pairs))
    return _reordered(arrays, "ours", "torch.nn")
