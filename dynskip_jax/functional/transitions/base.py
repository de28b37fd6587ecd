"""Interface of a transition, the function from an input and a state to the new state of a cell."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.checks import check_fields
from dynskip_jax.functional.product import activate, affine, product, wider

Initializer = Callable[..., Any]
Activation = str | Callable[[Array], Array]
ACTIVATIONS = {"sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "relu": jax.nn.relu}
Dense = Callable[..., Any]  # a function with the contract of `dense`


def dense(
    w: Float[Array, "in out"],
    x: Float[Array, "*batch in"],
    *addends: Float[Array, "..."],
    activations: Sequence[str] = ("linear",),
) -> Any:
    """Return activation(x w + addends), by which `Transition.step` multiplies by matrices.

    The reference unroll passes this function. The fused unroll passes one that keeps the results
    for the backward pass. It then computes the gradient of every matrix, and of every vector that
    is an addend, as one product or sum over all steps after its loop.

    Args:
        *addends: Arrays (*batch, out), or vectors of the params, (out,). Add arrays from `project`
            here and use them nowhere else: the fused unroll then stores the result in their place.
        activations: Names of activations (see `product.activate`). Several give a tuple of blocks.
    """
    return activate(affine(x, w, *addends), activations)


def activated_gates(
    dense: Dense,
    w: Any,
    x: Float[Array, "*batch in"],
    *addends: Any,
    functions: Sequence[Activation],
) -> list[Float[Array, "*batch hidden"]]:
    """Return the gates f_i(x w + addends), one array for each of the `functions`.

    `dense` applies tanh and sigmoid itself, because their values determine their derivatives. Any
    other function is applied to the linear result of `dense`.
    """
    names = ["linear"] * len(functions)
    for i, function in enumerate(functions):
        if function in ("tanh", "sigmoid"):
            names[i] = function
    results = dense(w, x, *addends, activations=tuple(names))
    if len(names) == 1:
        results = (results,)
    gates = list(results)
    for i, name in enumerate(names):
        if name == "linear":
            gates[i] = applied(functions[i], gates[i])
    return gates


def applied(
    function: Activation, x: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch hidden"]:
    """Return f(x) for a function or the name of one."""
    return ACTIVATIONS.get(function, function)(x)


def identity(cell_state: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    """Return the cell state unchanged: the default `cell_hook`, used without a depth skip."""
    return cell_state


class Initializers(NamedTuple):
    """Initializers of the parameters, called with (key, shape, dtype) like those of Flax and JAX.

    Attributes:
        kernel: Initializer of matrices that multiply the input.
        recurrent: Initializer of matrices that multiply the state, called for the block of each
            gate.
        bias: Initializer of biases and other vectors.
        forget_bias: Number added to the initial bias of every forget gate.
        dtype: Dtype of the parameters. Parameters of narrow dtypes are drawn in float32 and cast.
        agent_input: Initializer of an agent's weights on the input. None draws them together with
            those on the state, with one `kernel` on s(t). Sparse inputs, such as one-hot vectors,
            may need another scale.
    """

    kernel: Initializer = jax.nn.initializers.lecun_normal()
    recurrent: Initializer = jax.nn.initializers.orthogonal()
    bias: Initializer = jax.nn.initializers.zeros
    forget_bias: float = 0.0
    dtype: Any = jnp.float32
    agent_input: Initializer | None = None

    def draw(
        self, init: Initializer, key: Key[Array, ""], shape: tuple[int, ...]
    ) -> Float[Array, "..."]:
        """Return one array in `dtype`, drawn with `init`, in float32 if `dtype` is narrower."""
        array = init(key, shape, wider(self.dtype, jnp.float32))
        if not hasattr(array, "astype"):  # nnx.with_partitioning
            wanted = "an initializer that returns an array"
            raise UserError(f"expected {wanted}, got {described(array)}: shard the finished layer")
        return array.astype(self.dtype)

    def blocks(
        self, init: Initializer, key: Key[Array, ""], rows: int, width: int, count: int
    ) -> Float[Array, "rows all"]:
        """Return `count` matrices (rows, width), drawn independently with `init`, side by side."""
        keys = jax.random.split(key, count)
        return jnp.concatenate([self.draw(init, k, (rows, width)) for k in keys], axis=1)

    def biases(
        self, key: Key[Array, ""], width: int, count: int, forget_gate: int, sign: float = 1.0
    ) -> Float[Array, " all"]:
        """Return the biases of `count` gates; one has `sign` times `forget_bias` added."""
        b = self.draw(self.bias, key, (count * width,))
        return b.at[forget_gate * width : (forget_gate + 1) * width].add(sign * self.forget_bias)


@dataclasses.dataclass(frozen=True)
class Transition:
    """Function from an input and a state to the new state.

    It is hashable, hence a static argument under `jit`. To write your own, derive a frozen
    dataclass with `state`, `recurrent`, `init`, `project` and `step`; docs/own_pieces.md has an
    example of twenty lines. A transition declares, by class attributes:

    * `name`: name on the command line.
    * `number` (None): name of the field that a number after a colon sets, as in `rhn:5`.
    * `state`: `NamedTuple` class of the state's arrays, h first, each (*batch, hidden).
    * `cell_state` (`h`): name of the array that is the cell state (Wu et al. 2016, Eq. 33).
    * `recurrent`: names of the params that multiply the state: weight dropout acts on their
      matrices.
    * `has_small_gates` (False): a gate has another size than the state.
    * `averages` (`linear`): `own` if the class has its own `average_states`.
    """

    name: ClassVar[str] = ""
    number: ClassVar[str | None] = None
    state: ClassVar[type[tuple]]
    cell_state: ClassVar[str] = "h"
    recurrent: ClassVar[tuple[str, ...]]
    has_small_gates: ClassVar[bool] = False
    averages: ClassVar[Literal["linear", "own"]] = "linear"

    def __init_subclass__(cls) -> None:
        """Refuse a class whose declared `averages` contradicts its methods."""
        if cls.averages == "linear" and {"mix_states", "average_states"} & vars(cls).keys():
            raise TypeError(f"{cls.__name__} mixes states in its own way: set averages = 'own'")

    def __post_init__(self) -> None:
        """Check numbers; name known activations, so that transitions compare by value."""
        check_fields(self)
        names = {function: name for name, function in ACTIVATIONS.items()}
        for field in dataclasses.fields(self):
            if not field.name.endswith("_fn"):
                continue
            value = getattr(self, field.name)
            if isinstance(value, str) and value not in ACTIVATIONS:
                raise UserError(
                    f"unknown {field.name} {value!r}: use a function or {', '.join(ACTIVATIONS)}"
                )
            object.__setattr__(self, field.name, names.get(value, value))

    @property
    def carries_cell(self) -> bool:
        """Whether the state has a cell state besides h.

        Recurrent dropout then masks the h that enters. Otherwise it masks only the operands of
        products, and not the h that is carried on.
        """
        return self.cell_state != "h"

    def init(self, key: Key[Array, ""], in_features: int, hidden: int, init: Initializers) -> Any:
        """Draw the parameters, a named tuple.

        Leaves with two axes are matrices, by which `step` may multiply only through `dense`. Leaves
        with one axis are vectors, which `step` may use in any way.
        """
        raise NotImplementedError

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Return the part of a step that needs no state, (*batch, ...): one product for all steps.

        By default x W_x.
        """
        return product(x, params.w_x)

    def prepared(self, inputs: Any) -> Any:
        """Return what `step` takes, from the result of `project` for all steps.

        A depth skip into the gates has been added. By default that is the result itself.
        """
        return inputs

    def step(
        self,
        params: Any,
        inputs: Any,
        state: Any,
        dense: Dense,
        cell_hook: Callable[
            [Float[Array, "*batch hidden"]], Float[Array, "*batch hidden"]
        ] = identity,
    ) -> Any:
        """Return the new state from the `state` that enters and the projected `inputs` of x(t).

        Multiply by a matrix through `dense`. Call `cell_hook` once with the new cell state, before
        it is used: its result replaces the cell state, because a depth skip may add to it.
        """
        raise NotImplementedError

    def unread_state(
        self, params: Any, inputs: Any, state: Any, previous: Any, dense: Dense
    ) -> Any:
        """Return the state after a token that is not read; by default State(t-1), `previous`.

        Override this for a smaller step, as `SkimLSTM` does. `state` is the state that enters, with
        recurrent dropout applied to h.
        """
        return previous

    def mix_states(
        self, mix: float | Float[Array, "*batch_or_none"], selected: Any, previous: Any
    ) -> Any:
        """Return λ selected + (1 - λ) previous, the state that enters a step (Eq. 2).

        If a time skip writes only a fraction of the new state, (*batch, 1), that state is mixed in
        the same way. If λ is the Python number 1, this method is not called, and `selected` enters.
        """
        if self.averages == "linear":
            return jax.tree.map(lambda new, old: mix * new + (1 - mix) * old, selected, previous)
        # Otherwise it is the average of two states with the weights λ and 1 - λ.
        h = previous[0]
        share = jnp.broadcast_to(jnp.asarray(mix, h.dtype), (*h.shape[:-1], 1))
        both = jax.tree.map(lambda *arrays: jnp.stack(arrays, axis=-2), selected, previous)
        return self.average_states(jnp.concatenate([share, 1 - share], axis=-1), both)

    def average_states(self, weights: Float[Array, "*batch K"], states: Any) -> Any:
        """Return the average of K states, each (*batch, K, hidden), under weights of sum 1.

        Override this for arrays without a linear mean, such as the logarithm of a scale, and set
        `averages`.
        """
        return jax.tree.map(lambda slots: jnp.einsum("...k,...kh->...h", weights, slots), states)
