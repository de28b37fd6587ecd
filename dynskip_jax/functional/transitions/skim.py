"""Two LSTMs of Skim-RNN (Seo et al. 2018): a large one for tokens that are read, a small one for others."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import product
from dynskip_jax.functional.transitions.base import Initializers, Transition, identity
from dynskip_jax.functional.transitions.lstm import LSTM, LSTMParams, LSTMState, lstm_params


class SkimParams(NamedTuple):
    """Weights of both LSTMs, with the gates in the order g, i, f, o.

    Attributes:
        w_x: Input to gates of the large LSTM, (in, 4 * hidden).
        w_h: State to gates of the large LSTM, (hidden, 4 * hidden).
        b: Bias of the large LSTM, (4 * hidden,).
        w_xs: Input to gates of the small LSTM, (in, 4 * small).
        w_hs: State to gates of the small LSTM, (hidden, 4 * small).
        b_s: Bias of the small LSTM, (4 * small,).
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    w_xs: Float[Array, "in small_gates"]
    w_hs: Float[Array, "hidden small_gates"]
    b_s: Float[Array, " small_gates"]


class SkimInputs(NamedTuple):
    """Projected inputs of both LSTMs.

    Attributes:
        read: W x of the large LSTM, (*batch, 4 * hidden).
        skimmed: W x of the small LSTM, (*batch, 4 * small).
    """

    read: Float[Array, "*batch gates"]
    skimmed: Float[Array, "*batch small_gates"]


@dataclasses.dataclass(frozen=True)
class SkimLSTM(Transition):
    """An LSTM with a small LSTM for tokens that the time skip, such as `SkimRNN`, does not read.

    The small LSTM receives all of h(t-1), and writes only the first `small` units of h and c.

    Attributes:
        small: Number d' of units that a skimmed token writes.
    """

    name: ClassVar[str] = "skim_lstm"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    recurrent: ClassVar[tuple[str, ...]] = ("w_h", "w_hs")
    number: ClassVar[str] = "small"
    small: int = 5

    def __post_init__(self) -> None:
        """Check the option."""
        if self.small < 1:
            raise UserError(f"a skimming LSTM needs a small size of at least 1, got {self.small}")

    def init(self, key, in_features, hidden, init: Initializers) -> SkimParams:
        """Draw the weights; see `Transition`."""
        if self.small > hidden:
            raise UserError(f"expected a small size of at most {hidden}, the layer's, got {self.small}")
        key, x_key, h_key, b_key = jax.random.split(key, 4)
        b_s = init.draw(init.bias, b_key, (4 * self.small,))
        return SkimParams(
            *lstm_params(key, in_features, hidden, 4, init, forget_gate=2),
            init.blocks(init.kernel, x_key, in_features, self.small, 4),
            init.blocks(init.recurrent, h_key, hidden, self.small, 4),
            b_s.at[2 * self.small : 3 * self.small].add(init.forget_bias),
        )

    def project(self, params: SkimParams, x) -> SkimInputs:
        """Return W x of both LSTMs; see `SkimInputs`."""
        return SkimInputs(product(x, params.w_x), product(x, params.w_xs))

    def step(self, params: SkimParams, inputs: SkimInputs, state, dense, cell_hook=identity) -> LSTMState:
        """Take one step of the large LSTM; see `Transition`."""
        large = LSTMParams(params.w_x, params.w_h, params.b)
        return LSTM().step(large, inputs.read, state, dense, cell_hook)

    def unread_state(
        self, params: SkimParams, inputs: SkimInputs, state, previous: LSTMState, dense
    ) -> LSTMState:
        """Take one step of the small LSTM, and keep the other units of `previous`; see `Transition`."""
        small = LSTMParams(params.w_xs, params.w_hs, params.b_s)
        new = LSTM().step(small, inputs.skimmed, LSTMState(state.h, state.c[..., : self.small]), dense)
        return jax.tree.map(
            lambda new, old: jnp.concatenate([new, old[..., self.small :]], axis=-1), new, previous
        )
