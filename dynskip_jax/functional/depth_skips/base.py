"""What a skip over depth is: what a stacked layer receives from a layer further below, at every step."""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import product
from dynskip_jax.functional.transitions.base import Dense, Initializers

MAPPINGS = ("identity", "linear", "sigmoid")


@dataclasses.dataclass(frozen=True)
class DepthSkip:
    """Where the output of the layer two below enters. Hashable, hence a static argument under `jit`.

    Wu et al. (2016). Layer l's own h^{l-1} is the layer's input x here, h^{l-2} is `below`. What
    enters is part of the recurrence: the state of the next step contains it, as their equations say.

    Attributes:
        name: on the command line.
        layers_below: how far below the layer is that it comes from.
        source: what of that layer: its `output` h, or its internal state (`cell_state`).
    """

    name: ClassVar[str] = ""
    layers_below: ClassVar[int] = 2
    source: ClassVar[Literal["output", "cell_state"]] = "output"

    def init(
        self, key: Key[Array, ""], in_features: int, below: int, hidden: int, widths: Any, init: Initializers
    ) -> Any:
        """Draws the parameters; None where there are none.

        Args:
            key: a PRNG key.
            in_features: size of the layer's input.
            below: size of what comes from below.
            hidden: size of the layer's state.
            widths: of each array of the transition's `project`, the last axis.
            init: how parameters are drawn.
        """
        raise NotImplementedError

    def check_below(self, below: int, hidden: int) -> None:
        """Raises a `UserError` where what comes from below is not of the size that this takes."""

    def project(self, params: Any, x: Float[Array, "*batch in"], below: Float[Array, "*batch below"]) -> Any:
        """What of it needs no state."""
        raise NotImplementedError

    def into_gates(self, params: Any, below: Float[Array, "*batch below"], inputs: Any) -> Any:
        """The transition's projected inputs with what enters its gates."""
        return inputs

    def into_cell_state(
        self,
        params: Any,
        inputs: Any,
        h: Float[Array, "*batch hidden"],
        before: Float[Array, "*batch hidden"],
        cell_state: Float[Array, "*batch hidden"],
        dense: Dense,
    ) -> Float[Array, "*batch hidden"]:
        """The new internal state with what enters it.

        Args:
            params: from `init`.
            inputs: from `project`.
            h: the h that enters the step.
            before: the internal state that enters the step.
            cell_state: the new internal state.
            dense: multiplies by a matrix, as in `Transition.step`.
        """
        return cell_state

    def into_output(
        self,
        params: Any,
        inputs: Any,
        h: Float[Array, "*batch hidden"],
        output: Float[Array, "*batch hidden"],
        dense: Dense,
    ) -> Float[Array, "*batch hidden"]:
        """The new h with what enters it; `h` is the one that enters the step."""
        return output


class MappingParams(NamedTuple):
    """Weights of a mapping and of its gate; None where there is no such part.

    Attributes:
        w_m: of the `linear` mapping, (below, hidden).
        w_gx: gate, from the input (Eq. 49) or from below (Section 6.1.4), (in or below, hidden).
        w_gh: gate, from h(t-1), (hidden, hidden).
        b_g: bias of the gate, (hidden,).
    """

    w_m: Float[Array, "below hidden"] | None = None
    w_gx: Float[Array, "in hidden"] | None = None
    w_gh: Float[Array, "hidden hidden"] | None = None
    b_g: Float[Array, " hidden"] | None = None


class MappingInputs(NamedTuple):
    """Attributes:
    mapped: what enters, (*batch, hidden).
    gate: the gate's projected input, (*batch, hidden); None without a gate.
    """

    mapped: Float[Array, "*batch hidden"]
    gate: Float[Array, "*batch hidden"] | None = None


@dataclasses.dataclass(frozen=True)
class Mapped(DepthSkip):
    """Something is made of what comes from below, and let through by a gate or wholly.

    Attributes:
        gated: multiplied by g = σ(W x + W h(t-1) + b), Eq. 49.
        mapping: of what comes from below: `identity`; `linear`, a matrix; or `sigmoid`, σ of it (Section
            6.1.4).
        gate_sees: beside h(t-1) the gate sees the layer's `input`, Eq. 49; or what comes from `below`, as in
            the formula of Section 6.1.4.
    """

    gated: bool = False
    mapping: str = "identity"
    gate_sees: str = "input"

    def __post_init__(self) -> None:
        """Checks the options."""
        for name, known in (("mapping", MAPPINGS), ("gate_sees", ("input", "below"))):
            if getattr(self, name) not in known:
                raise UserError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(known)}")

    def init(self, key, in_features, below, hidden, widths, init: Initializers) -> MappingParams:
        """Draws the weights; see `DepthSkip`."""
        self.check_below(below, hidden)
        m_key, x_key, h_key, b_key = jax.random.split(key, 4)
        params = MappingParams()
        if self.mapping == "linear":
            params = params._replace(w_m=init.draw(init.kernel, m_key, (below, hidden)))
        if self.gated:
            seen = in_features if self.gate_sees == "input" else below
            params = params._replace(
                w_gx=init.draw(init.kernel, x_key, (seen, hidden)),
                w_gh=init.draw(init.recurrent, h_key, (hidden, hidden)),
                b_g=init.draw(init.bias, b_key, (hidden,)),
            )
        return params

    def check_below(self, below: int, hidden: int) -> None:
        """See `DepthSkip`; a matrix takes what it was made for."""
        if self.mapping != "linear":
            check_size(below, hidden)

    def project(self, params: MappingParams, x, below) -> MappingInputs:
        """What enters, and the gate's share that needs no state; see `DepthSkip`."""
        gate = product(x if self.gate_sees == "input" else below, params.w_gx) if self.gated else None
        return MappingInputs(self.mapped(params, below), gate)

    def mapped(self, params: MappingParams, below: Float[Array, "*batch below"]):
        """What is made of what comes from below."""
        if self.mapping == "linear":
            return product(below, params.w_m)
        return jax.nn.sigmoid(below) if self.mapping == "sigmoid" else below

    def entering(self, params: MappingParams, inputs: MappingInputs, h, dense: Dense):
        """What enters: g ⊙ mapped, or mapped."""
        if not self.gated:
            return inputs.mapped
        gate = dense(params.w_gh, h, inputs.gate, params.b_g, activations=("sigmoid",))
        return gate * inputs.mapped


def check_size(below: int, hidden: int) -> None:
    """Raises a `UserError` where what comes from below does not fit as it is."""
    if below != hidden:
        raise UserError(
            f"a skip over depth from a layer of size {below} to one of size {hidden} needs mapping='linear'"
        )


def tiled(x: Float[Array, "*batch hidden"], width: int) -> Float[Array, "*batch width"]:
    """x beside itself, until the width is reached: one copy for each gate."""
    return jnp.concatenate([x] * (width // x.shape[-1]), axis=-1)
