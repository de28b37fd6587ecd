"""Two LSTMs of Skim-RNN (Seo et al. 2018): a large one to read, a small one to skim."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import check_whole
from dynskip_jax.functional.product import product
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.lstm import LSTM, LSTMParams, LSTMState, lstm_params


@register_for_export
class SkimParams(NamedTuple):
    """Weights of the large LSTM, and of the small one."""

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    w_xs: Float[Array, "in small_gates"]
    w_hs: Float[Array, "hidden small_gates"]
    b_s: Float[Array, " small_gates"]


@dataclasses.dataclass(frozen=True)
class SkimLSTM(Transition):
    """An LSTM with a small LSTM for tokens that the time skip, such as `SkimRNN`, does not read.

    The small LSTM receives all of h(t-1), and writes only the first `small` units (d') of h and c.
    """

    name = "skim_lstm"
    state = LSTMState
    cell_state = "c"
    recurrent = ("w_h", "w_hs")
    number = "small"
    has_small_gates = True
    small: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("SkimLSTM.small", self.small)

    def init(self, key, in_features, hidden, init) -> SkimParams:
        if self.small > hidden:
            raise UserError(
                f"expected a small size of at most {hidden}, the layer's, got {self.small}"
            )
        large_key, small_key = jax.random.split(key)
        large = lstm_params(large_key, in_features, hidden, 4, init)
        return SkimParams(
            *large, *lstm_params(small_key, in_features, hidden, 4, init, width=self.small)
        )

    def project(self, params: SkimParams, x):
        return product(x, params.w_x), product(x, params.w_xs)

    def step(self, params: SkimParams, inputs, state, dense, cell_hook=identity) -> LSTMState:
        return LSTM().step(LSTMParams(*params[:3]), inputs[0], state, dense, cell_hook)

    def unread_state(
        self, params: SkimParams, inputs, state, previous: LSTMState, dense
    ) -> LSTMState:
        """Take one step of the small LSTM, and keep the other units of `previous`."""
        # It reads all of h, and the part of c that it writes.
        state = LSTMState(state.h, state.c[..., : self.small])
        new = LSTM().step(LSTMParams(*params[3:]), inputs[1], state, dense)
        pairs = zip(new, previous, strict=True)
        return LSTMState(*(jnp.concatenate([a, b[..., self.small :]], axis=-1) for a, b in pairs))
