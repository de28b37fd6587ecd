"""What a transition is: how a cell turns (input, state) into a new state."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from dynskip_jax.functional.product import activate, affine

Initializer = Callable[..., Any]


@runtime_checkable
class Dense(Protocol):
    """The function with which `Transition.step` multiplies: activation(x w + addends).

    The unroll decides what stands behind it. The reference computes just that (`dense` below). The fused
    unroll keeps the results for the backward pass, and takes the gradient of every matrix, and of every
    vector that is an addend, as one product or sum over all steps behind its loop.
    """

    def __call__(
        self,
        w: Float[Array, "in out"],
        x: Float[Array, "*batch in"],
        *addends: Float[Array, "..."],
        activations: Sequence[str] = ("linear",),
    ) -> Any:
        """Multiplies, adds and activates.

        Args:
            w: a matrix out of the params, (in, out).
            x: what it multiplies, (*batch, in).
            *addends: arrays of (*batch, out), or vectors out of the params, (out,). An array that `project`
                returned is best added here, and used nowhere else: the fused unroll then keeps the result
                in its place.
            activations: of the result; see `product.activate`.

        Returns:
            (*batch, out); with several activations a tuple of as many blocks.
        """


def dense(
    w: Float[Array, "in out"],
    x: Float[Array, "*batch in"],
    *addends: Float[Array, "..."],
    activations: Sequence[str] = ("linear",),
) -> Any:
    """The plain `Dense`."""
    return activate(affine(x, w, *addends), activations)


def identity(cell_state: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    """What no skip over depth does to a new internal state."""
    return cell_state


class Initializers(NamedTuple):
    """How parameters are drawn.

    Attributes:
        kernel: of matrices that multiply the input; called with (key, shape, dtype), as Flax's and JAX's are.
        recurrent: of matrices that multiply the state, one (hidden, hidden) block for each gate.
        bias: of biases and other vectors.
        forget_bias: added to the initial bias of every forget gate.
        dtype: of the parameters; what is narrower than float32 is drawn in float32.
        agent_input: of an agent's weights on the input, where they are to have a scale of their own, as for
            one-hot inputs: few of their features are not zero. By default one `kernel` on s(t) is drawn.
    """

    kernel: Initializer = jax.nn.initializers.lecun_normal()
    recurrent: Initializer = jax.nn.initializers.orthogonal()
    bias: Initializer = jax.nn.initializers.zeros
    forget_bias: float = 0.0
    dtype: Any = jnp.float32
    agent_input: Initializer | None = None

    def draw(self, init: Initializer, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        """One array, drawn in float32 where its dtype is narrower: not every initializer can do less."""
        wide = jnp.promote_types(self.dtype, jnp.float32)
        return init(key, shape, wide).astype(self.dtype)

    def blocks(
        self, init: Initializer, key: Key[Array, ""], rows: int, width: int, count: int
    ) -> Float[Array, "rows all"]:
        """Matrices of (rows, width) side by side, each drawn by itself."""
        keys = jax.random.split(key, count)
        return jnp.concatenate([self.draw(init, k, (rows, width)) for k in keys], axis=1)


@dataclasses.dataclass(frozen=True)
class Transition:
    """How a cell turns (input, state) into a new state. Hashable, hence a static argument under `jit`.

    One of your own is a frozen dataclass with `state`, `init`, `project` and `step`; docs/own_pieces.md has
    one in twenty lines.

    By their names, matrices that begin with w_x multiply the input (in `project`), all others the state (in
    `step`): to these `weight_dropout` is applied.

    Attributes:
        name: on the command line.
        state: a `NamedTuple` class of the state's arrays, h first, each (*batch, hidden).
        cell_state: which of them carries the memory: the internal state of Wu et al. (2016), Eq. 33, to which
            skips over depth may connect. Where it is h, recurrent dropout spares what is carried on and acts
            on what the matrices multiply.
    """

    name: ClassVar[str] = ""
    state: ClassVar[type[tuple]]
    cell_state: ClassVar[str] = "h"

    def init(self, key: Key[Array, ""], in_features: int, hidden: int, init: Initializers) -> Any:
        """Draws the parameters.

        Returns:
            A named tuple. Leaves of two axes are matrices, which `step` multiplies by through `dense`; leaves
            of one axis are vectors, which it may use as it likes.
        """
        raise NotImplementedError

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Returns what of a step needs no state, (*batch, ...), so that all steps can share one product."""
        raise NotImplementedError

    def step(
        self,
        params: Any,
        inputs: Any,
        state: Any,
        dense: Dense,
        cell_hook: Callable[[Float[Array, "*batch hidden"]], Float[Array, "*batch hidden"]] = identity,
    ) -> Any:
        """One step.

        Args:
            params: from `init`.
            inputs: `project(params, x(t))`.
            state: the state that enters.
            dense: multiplies by a matrix; see `Dense`.
            cell_hook: to be called once with the new internal state, before anything is made of it: where
                a skip over depth adds something.

        Returns:
            The new state.
        """
        raise NotImplementedError

    def mix_states(self, mix: float | Float[Array, ""], selected: Any, previous: Any) -> Any:
        """Return λ selected + (1 - λ) previous, the state that enters a step (Eq. 2).

        Override this for arrays that have no linear meaning, such as the logarithm of a scale. Where λ is a
        number and 1, it is not called: `selected` enters.

        Args:
            mix: the skip weight λ.
            selected: State(t-k), or an average of states; each array (*batch, hidden).
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

    def output_gates(self, gates: int) -> int:
        """How many gates there are, if the last of them, the output gate, is fixed at 1 by option."""
        return gates if getattr(self, "output_gate", True) else gates - 1


def gated_output(
    o: Float[Array, "*batch hidden"] | None, c: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch hidden"]:
    """h = o ⊙ tanh(c), and tanh(c) where the output gate is fixed at 1."""
    return jnp.tanh(c) if o is None else o * jnp.tanh(c)
