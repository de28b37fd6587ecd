"""The interface of a transition: how a cell turns (input, state) into a new state."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from dynskip_jax.functional.product import activate, affine

Initializer = Callable[..., Any]
Activation = Callable[[Array], Array]
_DENSE_NAMES: dict[Activation, str] = {jnp.tanh: "tanh", jax.nn.sigmoid: "sigmoid"}


@runtime_checkable
class Dense(Protocol):
    """The function with which `Transition.step` multiplies: activation(x w + addends).

    The reference unroll passes `dense` below. The fused unroll passes a function that keeps the results for
    the backward pass. It then computes the gradient of every matrix, and of every vector that is an addend,
    as one product or sum over all steps after its loop.
    """

    def __call__(
        self,
        w: Float[Array, "in out"],
        x: Float[Array, "*batch in"],
        *addends: Float[Array, "..."],
        activations: Sequence[str] = ("linear",),
    ) -> Any:
        """Return activation(x w + addends).

        Args:
            w: a matrix of the params, (in, out).
            x: the operand, (*batch, in).
            *addends: arrays (*batch, out), or vectors of the params, (out,). Add arrays from `project` here
                and use them nowhere else: the fused unroll then stores the result in their place.
            activations: names of activations; see `product.activate`.

        Returns:
            (*batch, out); with several activations a tuple of as many blocks.
        """


def dense(
    w: Float[Array, "in out"],
    x: Float[Array, "*batch in"],
    *addends: Float[Array, "..."],
    activations: Sequence[str] = ("linear",),
) -> Any:
    """Return activation(x w + addends); see `Dense`."""
    return activate(affine(x, w, *addends), activations)


def activated_gates(
    dense: Dense,
    w: Any,
    x: Float[Array, "*batch in"],
    *addends: Any,
    functions: Sequence[Activation],
) -> list[Float[Array, "*batch hidden"]]:
    """Return the gates f_i(x w + addends), one array for each function.

    `dense` applies `jnp.tanh` and `jax.nn.sigmoid`, which it can fuse and differentiate from their values.
    Any other function is applied to its linear result.

    Args:
        dense: multiplies by a matrix; see `Dense`.
        w: the gates' matrices side by side, (in, gates).
        x: what they multiply, (*batch, in).
        *addends: see `Dense`.
        functions: one activation function for each gate.
    """
    names = [_DENSE_NAMES.get(function, "linear") for function in functions]
    results = dense(w, x, *addends, activations=tuple(names))
    results = (results,) if len(names) == 1 else results
    return [
        function(gate) if name == "linear" else gate
        for function, name, gate in zip(functions, names, results, strict=True)
    ]


def identity(cell_state: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    """Return the cell state as it is: the `cell_hook` without a skip over depth."""
    return cell_state


class Initializers(NamedTuple):
    """Initializers of the parameters, called with (key, shape, dtype) as those of Flax and JAX are.

    Attributes:
        kernel: for matrices that multiply the input.
        recurrent: for matrices that multiply the state; called for the (hidden, hidden) block of each gate.
        bias: for biases and other vectors.
        forget_bias: number added to the initial bias of every forget gate.
        dtype: dtype of the parameters. Narrow dtypes are drawn in float32 and cast.
        agent_input: for an agent's weights on the input. None draws them together with those on the state,
            with one `kernel` on s(t). Sparse inputs, such as one-hot vectors, may need another scale.
    """

    kernel: Initializer = jax.nn.initializers.lecun_normal()
    recurrent: Initializer = jax.nn.initializers.orthogonal()
    bias: Initializer = jax.nn.initializers.zeros
    forget_bias: float = 0.0
    dtype: Any = jnp.float32
    agent_input: Initializer | None = None

    def draw(self, init: Initializer, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Return one array, drawn in float32 where `dtype` is narrower."""
        wide = jnp.promote_types(self.dtype, jnp.float32)
        return init(key, shape, wide).astype(self.dtype)

    def blocks(
        self, init: Initializer, key: Key[Array, ""], rows: int, width: int, count: int
    ) -> Float[Array, "rows all"]:
        """Return `count` matrices of (rows, width) side by side, drawn independently."""
        keys = jax.random.split(key, count)
        return jnp.concatenate([self.draw(init, k, (rows, width)) for k in keys], axis=1)


@dataclasses.dataclass(frozen=True)
class Transition:
    """How a cell turns (input, state) into a new state. Hashable, hence a static argument under `jit`.

    To write your own, derive a frozen dataclass with `state`, `init`, `project` and `step`;
    docs/own_pieces.md has an example of twenty lines. Matrices whose names begin with w_x multiply the input
    (in `project`). All others multiply the state (in `step`), and weight dropout is applied to them.

    Attributes:
        name: its name on the command line.
        state: a `NamedTuple` class of the state's arrays, h first, each (*batch, hidden).
        cell_state: name of the array that carries the memory, the internal state of Wu et al. (2016), Eq. 33.
            Skips over depth may connect to it. Where it is h, recurrent dropout masks only the operands of
            matrices, and not the h that is carried on.
        number: name of the field that a number after the name and a colon sets, as in `rhn:5`; None for none.
    """

    name: ClassVar[str] = ""
    state: ClassVar[type[tuple]]
    cell_state: ClassVar[str] = "h"
    number: ClassVar[str | None] = None

    def init(self, key: Key[Array, ""], in_features: int, hidden: int, init: Initializers) -> Any:
        """Draw the parameters.

        Returns:
            A named tuple. Leaves with two axes are matrices, which `step` may only multiply by through
            `dense`. Leaves with one axis are vectors, which it may use in any way.
        """
        raise NotImplementedError

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Return the part of a step that needs no state, (*batch, ...): one product for all steps."""
        raise NotImplementedError

    def step(
        self,
        params: Any,
        inputs: Any,
        state: Any,
        dense: Dense,
        cell_hook: Callable[[Float[Array, "*batch hidden"]], Float[Array, "*batch hidden"]] = identity,
    ) -> Any:
        """Take one step.

        Args:
            params: parameters from `init`.
            inputs: `project(params, x(t))`.
            state: the state that enters.
            dense: multiplies by a matrix; see `Dense`.
            cell_hook: function to call once with the new cell state, before it is used: a skip over depth may
                add to it.

        Returns:
            The new state.
        """
        raise NotImplementedError

    def unread_state(self, params: Any, inputs: Any, state: Any, previous: Any, dense: Dense) -> Any:
        """Return the state after a token that the time skip does not read; by default State(t-1).

        Override this for a smaller step, as `SkimLSTM` does.

        Args:
            params: parameters from `init`.
            inputs: `project(params, x(t))`.
            state: the state that enters, its h with recurrent dropout.
            previous: State(t-1).
            dense: multiplies by a matrix; see `Dense`.
        """
        return previous

    def mix_states(self, mix: float | Float[Array, "*batch_or_none"], selected: Any, previous: Any) -> Any:
        """Return λ selected + (1 - λ) previous, the state that enters a step (Eq. 2).

        The state that a step writes is mixed in the same way where a time skip writes only a fraction of it.

        Override this for arrays that have no linear meaning, such as the logarithm of a scale. Where λ is a
        number and 1, it is not called: `selected` enters.

        Args:
            mix: the skip weight λ, a number; or the fraction of the new state that is written, (*batch, 1).
            selected: State(t-k), an average of states, or the new state; each array (*batch, hidden).
            previous: State(t-1).
        """
        return jax.tree.map(lambda new, old: mix * new + (1 - mix) * old, selected, previous)

    @property
    def mixes_linearly(self) -> bool:
        """Whether `mix_states` is the default, whose derivative needs no states."""
        return type(self).mix_states is Transition.mix_states

    def average_states(self, weights: Float[Array, "*batch K"], states: Any) -> Any:
        """Return the average of K states under weights that sum to one.

        Args:
            weights: one for each state, (*batch, K).
            states: the last K states, newest first, each array (*batch, K, hidden).
        """
        return jax.tree.map(lambda slots: jnp.einsum("...k,...kh->...h", weights, slots), states)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options that differ from the default: `jax.nn.sigmoid` cannot be pickled."""
        options = {f: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {f.name: value for f, value in options.items() if value != f.default}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set all options; see `__getstate__`."""
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, state.get(f.name, f.default))

    def __repr__(self) -> str:
        """Name the options that differ from the default, and functions without their addresses."""
        options = (f"{name}={getattr(v, '__name__', repr(v))}" for name, v in self.__getstate__().items())
        return f"{type(self).__qualname__}({', '.join(options)})"

    def output_gates(self, gates: int) -> int:
        """Return the number of gates that are computed: one less than `gates` without an output gate."""
        return gates if getattr(self, "output_gate", True) else gates - 1


def gated_output(
    o: Float[Array, "*batch hidden"] | None,
    c: Float[Array, "*batch hidden"],
    activation_fn: Activation = jnp.tanh,
) -> Float[Array, "*batch hidden"]:
    """Return h = o ⊙ tanh(c), or tanh(c) where the output gate is fixed at 1 (`o` is None)."""
    return activation_fn(c) if o is None else o * activation_fn(c)
