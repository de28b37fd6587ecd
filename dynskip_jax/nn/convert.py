"""Conversion of weights from and to the recurrent layers of PyTorch, Flax and Keras.

Weights are exchanged as arrays, so neither PyTorch nor Keras is imported. Each library orders the gates
differently. The order here is g, i, f, o for an LSTM and r, z, n for a GRU.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.base import Activation
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.layers import SkipLayers, SkipLSTM

ArrayLike = Any
_zeros = nnx.initializers.zeros_init()

# Names of the gates, in each library's order; n of a GRU is its candidate.
_TORCH = {"lstm": "ifgo", "gru": "rzn"}
_KERAS = {"lstm": "ifgo", "gru": "zrn"}
_FLAX = {"lstm": "ifgo", "gru": "rzn"}
_OURS = {"lstm": "gifo", "gru": "rz"}


def from_torch(
    state_dict: Mapping[str, ArrayLike],
    *,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **cell_options: Any,
) -> SkipLSTM:
    """Return layers with the weights of a `torch.nn.LSTM` or `torch.nn.GRU`, in all layers and directions.

    The layers are batch-first, whatever `batch_first` was in PyTorch.

    Args:
        state_dict: `module.state_dict()`, with tensors converted to arrays (`{k: v.numpy() for k, v in …}`).
        skip: Time skip of every layer. With `functional.Dynamic`, an agent is added to a trained network.
        rngs: Source of the agents' initial weights; required only if the skip has weights.
        **cell_options: Further options of `SkipLSTM`, such as those of `SkipCell`.

    Raises:
        UserError: The dictionary is not that of an LSTM or a GRU, or `rngs` is missing.

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
    bidirectional = "weight_ih_l0_reverse" in arrays
    suffixes = ("", "_reverse") if bidirectional else ("",)
    depth = len({re.search(r"_l(\d+)", name)[1] for name in arrays})
    places = [f"l{layer}{suffix}" for layer in range(depth) for suffix in suffixes]
    parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if "bias_ih_l0" in arrays else ()))
    expected = {f"{part}_{place}" for part in parts for place in places}
    if set(arrays) != expected:
        missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected)
        problem = f"{missing[0]} is missing" if missing else f"{unknown[0]} does not belong to it"
        raise UserError(f"the state_dict is not that of one torch.nn.LSTM or GRU: {problem}")
    rows, hidden = arrays["weight_hh_l0"].shape
    kind = {4: "lstm", 3: "gru"}.get(rows // hidden, "")
    if not kind:
        raise UserError(f"weight_hh_l0 has {rows // hidden} gates: an LSTM has 4 and a GRU 3")
    _needs_rngs(skip, rngs)
    layers = SkipLSTM(
        arrays["weight_ih_l0"].shape[1],
        hidden,
        num_layers=depth,
        skip=skip,
        transition=_transition(kind),
        bidirectional=bidirectional,
        rngs=rngs or nnx.Rngs(0),
        **_quick(cell_options),
    )
    zero = np.zeros(rows, arrays["weight_hh_l0"].dtype)
    for cell, place in zip(layers.cells, places, strict=True):
        _fill(
            cell,
            kind,
            _named(_TORCH[kind], arrays[f"weight_ih_{place}"].T),
            _named(_TORCH[kind], arrays[f"weight_hh_{place}"].T),
            _named(_TORCH[kind], arrays.get(f"bias_ih_{place}", zero)),
            _named(_TORCH[kind], arrays.get(f"bias_hh_{place}", zero)),
        )
    return layers


def to_torch(module: SkipLayers | SkipCell, *, bias: bool = True) -> dict[str, np.ndarray]:
    """Return the weights as the state dict of a `torch.nn.LSTM` or `torch.nn.GRU` of the same shape.

    Load it with `module.load_state_dict({k: torch.from_numpy(v) for k, v in to_torch(rnn).items()})`. It does
    not contain the weights of skips and agents. PyTorch has two biases for each gate. The bias here becomes
    `bias_ih`, and `bias_hh` is 0, except for the GRU's bias inside the reset, which is in `bias_hh`.

    Args:
        module: Layers or a cell with an LSTM or a GRU (reset after).
        bias: Whether the PyTorch layer has biases; False for a layer made with `bias=False`.

    Raises:
        UserError: PyTorch has no such layer, or `bias` is False and a bias is not 0. PyTorch has no layers
            that run in reverse only, skips over depth, zoneout, or a learned initial state.
    """
    cells, ways = [module], 1
    if isinstance(module, SkipLayers):
        cells, ways = module.cells, module.num_directions
        if module.reverse:
            raise UserError("torch.nn has no layer with reverse=True: make these layers without it")
    state = {}
    if len({(cell.recurrence.transition, cell.hidden_features) for cell in cells}) > 1:
        raise UserError("torch.nn has one transition and one size for all layers, and these have several")
    for i, cell in enumerate(cells):
        kind, w_x, w_h, b, b_h = _gates(cell, "torch.nn")
        place = f"l{i // ways}" + ("_reverse" if i % ways else "")
        state[f"weight_ih_{place}"] = _joined(_TORCH[kind], w_x).T
        state[f"weight_hh_{place}"] = _joined(_TORCH[kind], w_h).T
        biases = {"bias_ih": _joined(_TORCH[kind], b), "bias_hh": _joined(_TORCH[kind], b_h)}
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
    **cell_options: Any,
) -> SkipCell:
    """Make a cell with the weights of Flax's `LSTMCell`, `OptimizedLSTMCell` or `GRUCell`, NNX or Linen.

    Args:
        params: An NNX cell, or its state as nested dictionaries, or a Linen cell's `variables["params"]`.
        gate_fn: Activation of the gates. By default that of an NNX cell, and σ for dictionaries.
        activation_fn: Activation of the candidate and of an LSTM's c. By default that of an NNX cell, and
            tanh for dictionaries.
        skip: Time skip of the cell.
        rngs: Source of the agent's initial weights; required only if the skip has weights.
        **cell_options: Further options of `SkipCell`.

    Raises:
        UserError: `params` are not the weights of such a cell, or `rngs` is missing.
    """
    activations = dict(gate_fn=gate_fn, activation_fn=activation_fn)
    if isinstance(params, nnx.Module):
        activations = {name: given or getattr(params, name, None) for name, given in activations.items()}
        params = nnx.to_pure_dict(nnx.state(params, nnx.Param))
    layers = {
        name.rstrip("_"): {k: np.asarray(v) for k, v in layer.items()} for name, layer in params.items()
    }

    def of(names: Sequence[str], which: str) -> list[np.ndarray] | None:
        if not all(name in layers for name in names):
            return None
        kernels = [layers[name]["kernel"] for name in names]
        if which == "kernel":
            return kernels
        return [
            layers[n].get("bias", np.zeros(k.shape[1], k.dtype)) for n, k in zip(names, kernels, strict=True)
        ]

    if "dense_i" in layers:
        gates = layers["dense_h"]["kernel"].shape[1] // layers["dense_h"]["kernel"].shape[0]
        kind = {4: "lstm", 3: "gru"}.get(gates, "")
        parts = [
            np.split(of([name], which)[0], gates, axis=-1)
            for which in ("kernel", "bias")
            for name in ("dense_i", "dense_h")
        ]
    else:
        kind = "lstm" if "ii" in layers else "gru" if "ir" in layers else ""
        parts = [
            of([side + gate for gate in _FLAX.get(kind, "?")], which)
            for which in ("kernel", "bias")
            for side in "ih"
        ]
    if not kind or any(part is None for part in parts):
        raise UserError(
            f"expected the weights of Flax's LSTM or GRU cell, got {', '.join(sorted(params)) or 'none'}"
        )
    w_x, w_h, b, b_h = (dict(zip(_FLAX[kind], part, strict=True)) for part in parts)
    transition = dataclasses.replace(_transition(kind), **{n: f for n, f in activations.items() if f})
    return _cell(kind, w_x, w_h, b, b_h, transition, skip, rngs, cell_options)


def to_flax(cell: SkipCell, layout: str = "nnx") -> dict[str, dict[str, np.ndarray]]:
    """Return the weights as nested dictionaries for one of Flax's cells.

    Args:
        cell: Cell with an LSTM or a GRU (reset after).
        layout: `nnx`: the state of `nnx.OptimizedLSTMCell` or `nnx.GRUCell`, for `nnx.replace_by_pure_dict`.
            `linen`: `variables["params"]` of `linen.OptimizedLSTMCell` or `linen.GRUCell`.

    Raises:
        UserError: Flax has no such cell, or the layout is unknown. Flax's NNX GRU has no bias inside the
            reset, so this bias must be 0.
    """
    if layout not in ("nnx", "linen"):
        raise UserError(f"unknown layout {layout!r}: choose nnx or linen")
    kind, w_x, w_h, b, b_h = _gates(cell, "flax")
    order = _FLAX[kind]
    if layout == "nnx":
        if kind == "lstm":
            dense_i = {"kernel": _joined(order, w_x)}
            return {"dense_i": dense_i, "dense_h": {"kernel": _joined(order, w_h), "bias": _joined(order, b)}}
        if np.any(b_h["n"]):
            raise UserError(
                "nnx.GRUCell has no bias inside its reset, and this cell's is not 0: take linen's"
            )
        dense_i = {"kernel": _joined(order, w_x), "bias": _joined(order, b)}
        return {"dense_i": dense_i, "dense_h": {"kernel": _joined(order, w_h)}}
    if kind == "lstm":
        into = {f"i{gate}": {"kernel": w_x[gate]} for gate in order}
        return into | {f"h{gate}": {"kernel": w_h[gate], "bias": b[gate]} for gate in order}
    into = {f"i{gate}": {"kernel": w_x[gate], "bias": b[gate]} for gate in order}
    return into | {f"h{g}": {"kernel": w_h[g]} | ({"bias": b_h[g]} if g == "n" else {}) for g in order}


def from_keras(
    weights: Sequence[ArrayLike],
    *,
    config: Mapping[str, Any] | None = None,
    gate_fn: Activation | None = None,
    activation_fn: Activation | None = None,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **cell_options: Any,
) -> SkipCell:
    """Make a cell with the weights of Keras' `LSTM` or `GRU` layer, with `reset_after` or without.

    Args:
        weights: `layer.get_weights()`: kernel, recurrent kernel and, unless `use_bias=False`, bias.
        config: `layer.get_config()`. It is used to check options that the weights do not show, such as the
            activations. None checks nothing.
        gate_fn: The layer's `recurrent_activation` if it is not σ, such as `jax.nn.hard_sigmoid`.
        activation_fn: The layer's `activation` if it is not tanh.
        skip: Time skip of the cell.
        rngs: Source of the agent's initial weights; required only if the skip has weights.
        **cell_options: Further options of `SkipCell`.

    Raises:
        UserError: `weights` are not those of such a layer, `config` does not fit, or `rngs` is missing.
    """
    layer = _read_keras(weights, config or {}, gate_fn, activation_fn)
    return _cell(*layer, skip, rngs, cell_options)


def from_keras_bidirectional(
    weights: Sequence[ArrayLike],
    *,
    config: Mapping[str, Any] | None = None,
    gate_fn: Activation | None = None,
    activation_fn: Activation | None = None,
    skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
    rngs: nnx.Rngs | None = None,
    **cell_options: Any,
) -> SkipLSTM:
    """Make a layer with the weights of Keras' `Bidirectional(LSTM(...))` or `Bidirectional(GRU(...))`.

    The output concatenates both directions, as with `merge_mode="concat"`.

    Args:
        weights: `layer.get_weights()`: the arrays of the forward layer, then those of the backward layer.
        config: `layer.get_config()`; see `from_keras`.
        gate_fn: See `from_keras`.
        activation_fn: See `from_keras`.
        skip: Time skip of both directions.
        rngs: Source of the agents' initial weights; required only if the skip has weights.
        **cell_options: Further options of `SkipLSTM`, such as those of `SkipCell`.

    Raises:
        UserError: `weights` are not those of such a layer, `config` does not fit, or `rngs` is missing.
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
    kind, *forward, transition = _read_keras(weights[:half], own, gate_fn, activation_fn)
    _, *backward, _ = _read_keras(weights[half:], own, gate_fn, activation_fn)
    _needs_rngs(skip, rngs)
    layer = SkipLSTM(
        *next(iter(forward[0].values())).shape,
        skip=skip,
        transition=transition,
        bidirectional=True,
        rngs=rngs or nnx.Rngs(0),
        **_quick(cell_options),
    )
    for cell, parts in zip(layer.cells, (forward, backward), strict=True):
        _fill(cell, kind, *parts)
    return layer


def _read_keras(
    weights: Sequence[ArrayLike],
    config: Mapping[str, Any],
    gate_fn: Activation | None,
    activation_fn: Activation | None,
) -> tuple[str, dict, dict, dict, dict, F.Transition]:
    """Return the kind of a Keras layer, W_x, W_h and both biases of each gate, and the transition."""
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
    hidden, width = recurrent.shape
    kind = {4: "lstm", 3: "gru"}.get(width // hidden, "")
    if not kind:
        raise UserError(f"the recurrent kernel has {width // hidden} gates: an LSTM has 4 and a GRU 3")
    after = kind == "gru" and config.get("reset_after", True)
    bias = arrays[2] if len(arrays) == 3 else np.zeros((2, width) if after else width, kernel.dtype)
    shapes = [(width,), (2, width)] if kind == "gru" else [(width,)]
    if kernel.ndim != 2 or kernel.shape[1] != width or bias.shape not in shapes:
        raise UserError(
            f"expected a kernel of shape (inputs, {width}) and a bias of {' or '.join(map(str, shapes))}, "
            f"got {kernel.shape} and {bias.shape}: load weights of a CuDNN layer into another layer of Keras "
            "first"
        )
    order, reset = _KERAS[kind], "after" if bias.ndim == 2 else "before"
    transition = F.LSTM() if kind == "lstm" else F.GRU(reset)
    transition = _with_activations(transition, config, gate_fn, activation_fn)
    first, inside = bias if bias.ndim == 2 else (bias, np.zeros_like(bias))
    gates = (_named(order, array) for array in (kernel, recurrent, first, inside))
    return kind, *gates, transition


def _with_activations(
    transition: F.Transition,
    config: Mapping[str, Any],
    gate_fn: Activation | None,
    activation_fn: Activation | None,
) -> F.Transition:
    """Return `transition` with the activations of a Keras layer.

    Raises:
        UserError: `config` has another activation than Keras' default and its function is not given, or
            `go_backwards` is True.
    """
    for name, expected, argument, given in (
        ("recurrent_activation", "sigmoid", "gate_fn", gate_fn),
        ("activation", "tanh", "activation_fn", activation_fn),
    ):
        found = config.get(name, expected)
        if found != expected and given is None:
            raise UserError(
                f"the layer's {name} is {found!r}, not {expected!r}: pass that function as {argument} "
                "(hard_sigmoid is jax.nn.hard_sigmoid in Keras 3, and clip(0.2 x + 0.5, 0, 1) in Keras 2)"
            )
        if given is not None:
            transition = dataclasses.replace(transition, **{argument: given})
    if config.get("go_backwards"):
        raise UserError(
            "the layer has go_backwards=True, and a cell reads from the start: reverse the inputs, and pass "
            "config without go_backwards"
        )
    return transition


def to_keras(cell: SkipCell, *, bias: bool = True) -> list[np.ndarray]:
    """Return the weights for `set_weights` of Keras' `LSTM` or `GRU`.

    Set `reset_after=True` in the Keras GRU if this cell resets after the product, and False otherwise.

    Args:
        cell: Cell with an LSTM or a GRU.
        bias: Whether the Keras layer has biases; False for a layer made with `use_bias=False`.

    Raises:
        UserError: Keras has no such layer, or `bias` is False and a bias is not 0.
    """
    kind, w_x, w_h, b, b_h = _gates(cell, "Keras", before=True)
    order = _KERAS[kind]
    kernels, biases = [_joined(order, w_x), _joined(order, w_h)], _joined(order, b)
    if kind == "gru" and cell.recurrence.transition.reset == "after":
        biases = np.stack([biases, _joined(order, b_h)])
    if bias:
        return [*kernels, biases]
    _check_zero(bias=biases)
    return kernels


def _check_zero(**biases: np.ndarray) -> None:
    """Raise a `UserError` if a bias is not 0, because then it cannot be omitted."""
    for name, array in biases.items():
        if np.any(array):
            raise UserError(f"{name} is not 0, so it cannot be left out: leave out bias=False")


def _transition(kind: str) -> F.Transition:
    return F.LSTM() if kind == "lstm" else F.GRU("after")


def _quick(cell_options: dict[str, Any]) -> dict[str, Any]:
    """Return `cell_options` with weights initialized to zero, because they are overwritten afterwards.

    The matrices of an agent keep their default initializer.
    """
    options = {"agent_kernel_init": nnx.initializers.lecun_normal(), **cell_options}
    return {**options, "kernel_init": _zeros, "recurrent_kernel_init": _zeros, "bias_init": _zeros}


def _needs_rngs(skip: F.TimeSkip, rngs: nnx.Rngs | None) -> None:
    weights = jax.eval_shape(lambda key: skip.init(key, 1, 1, 1, F.Initializers()), jax.random.key(0))
    if rngs is None and jax.tree.leaves(weights):
        raise UserError(f"the weights of {type(skip).__name__} are drawn: pass rngs=nnx.Rngs(0)")


def _cell(kind, w_x, w_h, b, b_h, transition, skip, rngs, cell_options) -> SkipCell:
    _needs_rngs(skip, rngs)
    gate = next(iter(w_x))
    cell = SkipCell(
        *w_x[gate].shape,
        skip,
        transition=transition,
        **_quick(cell_options),
        rngs=rngs or nnx.Rngs(0),
    )
    _fill(cell, kind, w_x, w_h, b, b_h)
    return cell


def _fill(cell: SkipCell, kind: str, w_x: dict, w_h: dict, b: dict, b_h: dict) -> None:
    """Set the weights of a cell.

    Args:
        cell: Cell with an LSTM or a GRU.
        kind: `lstm` or `gru`.
        w_x: Matrix on the input of each gate.
        w_h: Matrix on the state of each gate.
        b: Bias of each gate, added to the product with the input.
        b_h: Bias of each gate, added to the product with the state.
    """
    weights, order = cell.weights, _OURS[kind]

    def put(param: nnx.Param, value: np.ndarray) -> None:
        if param.shape != value.shape:
            raise UserError(f"expected weights {param.shape}, got {value.shape}")
        param[...] = jnp.asarray(value, param.dtype)

    put(weights.w_x, _joined(order, w_x))
    put(weights.w_h, _joined(order, w_h))
    put(weights.b, _joined(order, b) + _joined(order, b_h))
    if kind == "gru":
        put(weights.w_xn, w_x["n"])
        put(weights.w_n, w_h["n"])
        if cell.recurrence.transition.reset == "after":
            put(weights.b_n, b["n"])
            put(weights.b_hn, b_h["n"])
        else:
            put(weights.b_n, b["n"] + b_h["n"])


def _gates(cell: SkipCell, library: str, before: bool = False) -> tuple[str, dict, dict, dict, dict]:
    """Return the kind of a cell, and W_x, W_h and both biases of each gate: the inverse of `_fill`.

    Args:
        cell: Cell with an LSTM or a GRU.
        library: Name of the other library for the error message.
        before: Whether the library has a GRU that resets before the product.

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
    kind = {F.LSTM(): "lstm", F.GRU("after"): "gru", F.GRU("before"): "gru"}.get(transition)
    if kind is None or (transition == F.GRU("before") and not before):
        raise UserError(f"{library} has no layer that computes {transition}")
    weights = cell.weights.read()
    w_x, w_h, b = (
        {gate: np.asarray(part) for gate, part in _named(_OURS[kind], np.asarray(array)).items()}
        for array in (weights.w_x, weights.w_h, weights.b)
    )
    b_h = {gate: np.zeros_like(part) for gate, part in b.items()}
    if kind == "gru":
        w_x["n"], w_h["n"], b["n"] = map(np.asarray, (weights.w_xn, weights.w_n, weights.b_n))
        b_h["n"] = np.zeros_like(b["n"]) if weights.b_hn is None else np.asarray(weights.b_hn)
    return kind, w_x, w_h, b, b_h


def _named(order: str, array: Array | np.ndarray) -> dict[str, np.ndarray]:
    """Return the blocks of the last axis, one for each gate name in `order`."""
    return dict(zip(order, np.split(np.asarray(array), len(order), axis=-1), strict=True))


def _joined(order: str, blocks: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([blocks[gate] for gate in order], axis=-1)
