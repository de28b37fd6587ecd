"""Recurrent cell with skips over time and depth, as a Flax NNX module."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import (
    check_actions,
    check_below,
    check_carry,
    check_inputs,
    check_number,
    check_policy,
    check_resets,
    check_whole,
)
from dynskip_jax.functional.keys import example_keys, split_each
from dynskip_jax.functional.layers import (
    LayerSpec,
    draw_recurrent_mask,
    initial_state,
    zoneout_mask,
)
from dynskip_jax.functional.product import wider
from dynskip_jax.nn.base import HasModes, Weights
from dynskip_jax.nn.calls import (
    Rngs,
    as_key,
    as_rates,
    batch_of,
    check_rngs,
    policy_or_default,
    require_key,
)
from dynskip_jax.nn.initializers import Initializer

_INIT = F.Initializers()


# The classes that a cell accepts as its parts, and what an error tells to pass instead.
_PIECES = {
    "skip": (F.TimeSkip, "parse_time_skip", "functional.Dynamic(5)"),
    "transition": (F.Transition, "parse_transition", "functional.GRU()"),
    "depth_skip": (F.DepthSkip | None, "parse_depth_skip", "functional.ToOutput(gated=True)"),
}


def check_pieces(**pieces: Any) -> None:
    """Raise a `UserError` if a skip or transition has the wrong type, such as a name or a class."""
    for name, given in pieces.items():
        kind, parser, instead = _PIECES[name]
        if isinstance(given, kind):
            continue
        if isinstance(given, str):
            instead = f"functional.{parser}({given!r})"
        raise UserError(f"expected {name}={instead}, got {given!r}")


def _zoneout_rates(zoneout: float | Sequence[float], transition: F.Transition) -> tuple[float, ...]:
    """Return one zoneout rate for each array of the state."""
    names = transition.state._fields
    rates = as_rates(zoneout, len(names))
    if len(rates) != len(names):
        raise UserError(f"zoneout has one rate, or one for each of {names}, got {rates}")
    if np.ndim(zoneout):
        return rates
    # A single rate is that of h and the cell state, and the other arrays have none.
    return tuple(
        rate * (name in ("h", transition.cell_state))
        for name, rate in zip(names, rates, strict=True)
    )


def _check_recurrent(transition: F.Transition, params: Any) -> None:
    """Raise a `UserError` unless a transition names the params that weight dropout can drop."""
    name = f"{type(transition).__name__}.recurrent"
    if not hasattr(transition, "recurrent"):
        raise UserError(f"weight_dropout drops params that multiply the state: name them in {name}")
    if unknown := {*transition.recurrent} - {*params._fields}:
        raise UserError(f"{name} names params that `init` does not return: {', '.join(unknown)}")


class SkipCell(HasModes, nnx.RNNCellBase):
    """A recurrent cell with any transition, any skip over time and any skip over depth.

    The cell computes `functional.recurrent_step`, and works in `nnx.RNN` as Flax's own cells do. To
    train an agent, run it in `SkipLayers`, whose output contains the decisions.

    Args:
        hidden_features: Size of h, and of every other array of the state.
        skip: Time skip: which earlier state enters a step; the previous one by default.
        transition: How a state and an input become the new state; an LSTM by default.
        depth_skip: What enters from layers further below; the cell is then called with `below`.
        below_features: Size of `below`; `hidden_features` by default.
        agent_features: Number of hidden units of the agent; the paper uses 50. Ignored without an
            agent.
        kernel_init: Initializer of matrices on the input, one (in, hidden) block for each gate.
        recurrent_kernel_init: Initializer of matrices on the state, one (hidden, hidden) block for
            each gate.
        forget_bias: Constant added to the forget gate's initial bias.
        agent_init: Initializers of the time skip's parameters, except for their dtype. By default
            `kernel_init`, and biases of 0.
        recurrent_dropout: Rate at which features of the entering h are dropped, with one mask for a
            sequence.
        weight_dropout: Rate at which entries of the recurrent matrices are dropped, with one mask
            for a whole call (DropConnect; Merity et al. 2018). Only layers can do this, and not the
            cell itself.
        zoneout: Rate at which units keep their value of State(t-1), with a new mask at each step,
            or the expected value in evaluation (Krueger et al. 2017). One rate for h and the cell
            state, or one for each array of the state, h first.
        learnable_carry: Whether to learn the initial state, which all sequences share, instead of
            zeros.
        dtype: Dtype in which matrices are multiplied; `param_dtype` by default. With bfloat16 the
            parameters, biases, sums, states and results stay float32; see `functional.product`.
        param_dtype: Dtype of the parameters, and of the state unless `dtype` is wider.

    Attributes:
        weights: Parameters of the transition.
        agent: Parameters of the time skip; None if it has none, as for the next two.
        depth: Parameters of the depth skip.
        initial: Learned initial state.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax import functional as F
        >>> cell = SkipCell(3, 8, F.Dynamic(5), transition=F.GRU(), rngs=nnx.Rngs(0))
        >>> nnx.RNN(cell)(jnp.ones((2, 7, 3))).shape
        (2, 7, 8)
    """

    num_feature_axes = 1  # of an input, for `nnx.RNN`

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        skip: F.TimeSkip = F.Previous(),  # noqa: B008 (immutable)
        *,
        transition: F.Transition = F.LSTM(),  # noqa: B008 (immutable)
        depth_skip: F.DepthSkip | None = None,
        below_features: int | None = None,
        agent_features: int = 50,
        kernel_init: Initializer = _INIT.kernel,
        recurrent_kernel_init: Initializer = _INIT.recurrent,
        bias_init: Initializer = _INIT.bias,
        forget_bias: float = 0.0,
        agent_init: F.Initializers | None = None,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        zoneout: float | Sequence[float] = 0.0,
        learnable_carry: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Pieces and sizes.
        check_pieces(skip=skip, transition=transition, depth_skip=depth_skip)
        check_rngs(rngs)
        self.in_features = check_whole("in_features", in_features)
        self.hidden_features = check_whole("hidden_features", hidden_features)
        self.agent_features = check_whole("agent_features", agent_features)
        self.below_features = self.hidden_features
        if below_features is not None:
            self.below_features = check_whole("below_features", below_features)
        self.recurrence = F.Recurrence(skip, transition, depth_skip)

        # Rates and dtypes, which are static.
        check_number("forget_bias", forget_bias, "between -inf and inf", np.isfinite)
        rates = (recurrent_dropout, weight_dropout)
        self.recurrent_dropout, self.weight_dropout = as_rates(rates, 2)
        self.zoneout = _zoneout_rates(zoneout, transition)

        self.param_dtype = param_dtype
        self.dtype = param_dtype if dtype is None else dtype
        for name, kind in (("dtype", self.dtype), ("param_dtype", param_dtype)):
            if not jnp.issubdtype(kind, jnp.floating):
                raise UserError(f"expected {name} to be floating, got {jnp.dtype(kind)}")
        # States are sums of products and parameters, so they have the wider dtype of the two.
        self.state_dtype = wider(self.dtype, param_dtype)
        self.deterministic = False

        # An agent's initializers do not follow those of the cell, except for matrices on the input.
        init = F.Initializers(
            kernel_init, recurrent_kernel_init, bias_init, forget_bias, param_dtype
        )
        if agent_init is None:
            agent_init = F.Initializers(kernel_init)
        params = self.recurrence.init(
            rngs.params(),
            self.in_features,
            self.hidden_features,
            below=self.below_features,
            agent_features=self.agent_features,
            init=init,
            agent_init=agent_init._replace(dtype=param_dtype),
        )
        if weight_dropout:
            _check_recurrent(transition, params.transition)

        # A piece without parameters is None, which is no part of the state.
        self.weights = Weights(params.transition)
        self.agent = _weights_or_none(params.skip)
        self.depth = _weights_or_none(params.depth)
        initial = None
        if learnable_carry:  # one state for all sequences, from zeros
            initial = F.zero_state(transition, (self.hidden_features,), param_dtype)
        self.initial = _weights_or_none(initial)

    @property
    def skip(self) -> F.TimeSkip:
        """Time skip of the cell: which earlier state enters a step."""
        return self.recurrence.time_skip

    @property
    def spec(self) -> LayerSpec:
        """Static description of a layer that runs this cell."""
        return LayerSpec(
            self.recurrence,
            self.hidden_features,
            self.in_features,
            recurrent_dropout=self.recurrent_dropout,
            weight_dropout=self.weight_dropout,
            zoneout=self.zoneout,
            dtype=jnp.dtype(self.dtype),
            state_dtype=jnp.dtype(self.state_dtype),
        )

    def raw_params(self) -> F.LayerParams:
        """Return the weights as they are stored, not yet cast to `dtype`."""
        agent = _read_or_none(self.agent)
        depth = _read_or_none(self.depth)
        initial = _read_or_none(self.initial)
        return F.LayerParams(self.weights.read(), agent, depth, initial)

    def params(self) -> F.LayerParams:
        """Return the weights for the pure functions, with matrices cast to `dtype`."""
        return F.cast_matrices(self.raw_params()._replace(initial=None), self.dtype)

    def initialize_carry(
        self, input_shape: int | tuple[int, ...], rngs: Rngs = None
    ) -> F.SkipCarry:
        """Return a carry whose K slots hold the initial state.

        Args:
            input_shape: Shape of one step's input, (*batch, in_features), or the number of
                sequences.
            rngs: A PRNG key, one for each example, (*batch,), an `nnx.Rngs` or a stream; None for
                no keys.
        """
        batch = batch_of(input_shape, self.in_features)
        drops = self.recurrent_dropout > 0.0 and not self.deterministic
        if drops:
            key = require_key(rngs, "this cell")
        else:
            key = as_key(rngs)

        # A key is always split, so that choices are the same with and without dropout.
        noise_key = mask_key = None
        if key is not None:
            noise_key, mask_key = split_each(key, 2)
        start = self.initial_state(batch)
        carry = F.initial_carry(noise_key, self.recurrence, start, self.in_features)
        if drops:
            carry = draw_recurrent_mask(self.spec, carry, example_keys(mask_key, batch))
        return carry

    def initial_state(self, batch: tuple[int, ...]) -> Any:
        """Return the initial state, zeros or learned, each array (*batch, hidden)."""
        return initial_state(self.spec, _read_or_none(self.initial), tuple(batch))

    def restart_carry(self, carry: F.SkipCarry) -> F.SkipCarry:
        """Return `carry` with its newest state, and the initial state in place of all others."""
        return F.restart_carry(carry, self.recurrence, self.initial_state(carry.step.shape))

    def __call__(
        self,
        carry: F.SkipCarry,
        inputs: Float[Array, "*batch in"],
        *,
        below: Float[Array, "*batch below"] | None = None,
        action: Int[Array, "*batch"] | None = None,
        resets: Bool[Array, "*batch"] | None = None,
        policy: F.Policy | None = None,
    ) -> tuple[F.SkipCarry, Float[Array, "*batch hidden"]]:
        """Take one step, and return the new carry and h(t).

        Args:
            action: Actions to replay, k in 1..K, (*batch,); None to choose. Traced actions out of
                range are clipped.
            resets: True where an episode begins, (*batch,): x(t) is its first input, and the carry
                that is given is not used, except for its keys, which change: no episode repeats the
                noise of an earlier one.
            policy: How choices are made. By default greedy in evaluation and sampled in training.
        """
        check_inputs(inputs, "(*batch, in)", self.in_features)
        batch = inputs.shape[:-1]

        # Shapes and values are checked here, because errors inside of `jit` name no argument.
        check_carry(self.recurrence, carry, batch, self.hidden_features)
        check_below(self.recurrence, below, batch, self.hidden_features)
        policy = policy_or_default(policy, self.deterministic)
        check_policy(policy, self.skip.max_skip, batch)
        if action is not None:
            check_actions(self.skip, action, batch, "(*batch,)")
        if resets is not None:
            check_resets(resets, batch, "(*batch,)")
        self._check_noise(carry, self.skip.draws(policy.mode, action is not None))
        return _step(
            self.spec,
            self.raw_params(),
            carry,
            inputs,
            below,
            action,
            resets,
            policy,
            self.deterministic,
        )

    def _check_noise(self, carry: F.SkipCarry, draws: bool) -> None:
        """Raise a `UserError` if a step lacks a key or a mask; `draws` is that of its choice."""
        trains = not self.deterministic  # nothing is dropped in evaluation
        if carry.key is None and (draws or (trains and any(self.zoneout))):
            raise UserError(
                "this cell draws, and its carry has no keys: make the carry with "
                "initialize_carry(input_shape, rngs), or call .eval()"
            )
        if trains and self.weight_dropout > 0.0:
            raise UserError(
                "weight_dropout drops the same weights at all steps, which a cell alone cannot: "
                "run it in SkipLayers, or call .eval()"
            )
        if trains and self.recurrent_dropout > 0.0 and carry.recurrent_mask is None:
            raise UserError(
                "recurrent_dropout needs a mask, and the carry has none: make the carry with this "
                "cell's initialize_carry(input_shape, rngs), or call .eval()"
            )


def _weights_or_none(values: Any) -> Any:
    """Return the parameters of a named tuple of arrays as a module's attribute; None of None."""
    return nnx.data(None if values is None else Weights(values))


def _read_or_none(weights: Weights | None) -> Any:
    """Return the arrays of parameters, or None if there are no parameters."""
    return None if weights is None else weights.read()


@partial(jax.jit, static_argnames=("spec", "deterministic"))
def _step(
    spec: LayerSpec,
    params: F.LayerParams,
    carry: F.SkipCarry,
    x: Float[Array, "*batch in"],
    below: Float[Array, "*batch below"] | None,
    action: Int[Array, "*batch"] | None,
    resets: Bool[Array, "*batch"] | None,
    policy: F.Policy,
    deterministic: bool,
) -> tuple[F.SkipCarry, Float[Array, "*batch hidden"]]:
    """Take one step, compiled even if it is called outside of `jit`."""
    params = F.cast_matrices(params, spec.dtype)
    inputs = F.project_inputs(params, x, spec.recurrence, below=below, action=action)
    inputs = inputs._replace(
        zoneout_mask=zoneout_mask(spec, carry, deterministic=deterministic), restart=resets
    )
    initial = None
    if resets is not None:
        initial = initial_state(spec, params.initial, x.shape[:-1], like=x)
    params = params._replace(initial=None)

    # A carry from training has a mask, which evaluation ignores but hands on.
    mask = carry.recurrent_mask
    if deterministic:
        carry = carry._replace(recurrent_mask=None)
    carry, output = F.recurrent_step(
        params, carry, inputs, spec.recurrence, policy, initial=initial
    )
    return carry._replace(recurrent_mask=mask), output.h
