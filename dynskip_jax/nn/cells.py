"""Recurrent cell with skips over time and depth, as a Flax NNX module."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import check_actions, check_below
from dynskip_jax.functional.keys import example_keys, split_each
from dynskip_jax.functional.layers import draw_recurrent_mask, zoneout_mask
from dynskip_jax.functional.product import wider
from dynskip_jax.nn.calls import Rngs, as_key, as_rates, check_inputs, policy_or_default, require_key
from dynskip_jax.nn.modes import HasModes
from dynskip_jax.nn.weights import Weights

Initializer = Callable[..., Any]
_lecun_normal = nnx.initializers.lecun_normal()
_orthogonal = nnx.initializers.orthogonal()
_zeros = nnx.initializers.zeros_init()


def _check_sizes(in_features: int, hidden_features: int, agent_features: int) -> None:
    sizes = dict(in_features=in_features, hidden_features=hidden_features, agent_features=agent_features)
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1, got {size}")


def check_pieces(
    skip: Any = F.Previous(),  # noqa: B008 (immutable)
    transition: Any = F.LSTM(),  # noqa: B008 (immutable)
    depth_skip: Any = None,
) -> None:
    """Raise a `UserError` if an argument has the wrong type, such as a name or a class."""
    for name, piece, kind, parse, example in (
        ("skip", skip, F.TimeSkip, "parse_time_skip", "functional.Dynamic(5)"),
        ("transition", transition, F.Transition, "parse_transition", "functional.GRU()"),
        ("depth_skip", depth_skip, F.DepthSkip, "parse_depth_skip", "functional.ToOutput(gated=True)"),
    ):
        if isinstance(piece, kind) or (name == "depth_skip" and piece is None):
            continue
        instead = f"functional.{parse}({piece!r})" if isinstance(piece, str) else example
        raise UserError(f"expected {name}={instead}, got {piece!r}")


def _zoneout_rates(zoneout: float | Sequence[float], transition: F.Transition) -> tuple[float, ...]:
    """Return one zoneout rate for each array of the state."""
    names = transition.state._fields
    rates = as_rates(zoneout, len(names))
    if len(rates) != len(names):
        raise UserError(f"zoneout has one rate, or one for each of {names}, got {rates}")
    if np.ndim(zoneout):
        return rates
    return tuple(
        rate * (name in ("h", transition.cell_state)) for name, rate in zip(names, rates, strict=True)
    )


class SkipCell(HasModes, nnx.RNNCellBase):
    """A recurrent cell with any transition, any skip over time and any skip over depth.

    The cell works wherever Flax's own cells do, such as in `nnx.RNN(cell)` and `nnx.Bidirectional`. It
    computes `functional.recurrent_step`.

    To train an agent, use `SkipLSTM` or `SkipLayers`, whose output contains the decisions and everything that
    a loss needs. With `nnx.RNN`, set `return_decision=True` and make the trace with
    `functional.DecisionTrace.of`. It requires a mask of the valid steps, because `nnx.RNN` does not pass the
    sequence lengths to a cell.

    Args:
        in_features: Size of the input.
        hidden_features: Size of h, and of every other array of the state.
        skip: Time skip: which earlier state enters a step; the previous one by default.
        transition: How a state and an input become the new state; an LSTM by default.
        depth_skip: What enters from layers further below; the cell is then called with `below`. None for no
            depth skip.
        below_features: Size of `below`; `hidden_features` by default.
        agent_features: Number of hidden units of the agent; the paper uses 50. Ignored without an agent.
        kernel_init: Initializer of matrices on the input, one (in, hidden) block for each gate.
        recurrent_kernel_init: Initializer of matrices on the state, one (hidden, hidden) block for each gate.
        bias_init: Initializer of biases and other vectors.
        forget_bias: Constant added to the forget gate's initial bias.
        agent_kernel_init: Initializer of the time skip's matrices; `kernel_init` by default.
        agent_input_kernel_init: Initializer of the agent's matrix on x(t), for inputs that need another
            scale, such as one-hot vectors. By default `agent_kernel_init` draws it together with the matrix
            on h(t-1).
        agent_bias_init: Initializer of the time skip's biases.
        recurrent_dropout: Rate at which features of the entering h are dropped, with one mask for all steps
            of a sequence.
        weight_dropout: Rate at which entries of the recurrent matrices are dropped, with one mask for all
            sequences and steps (DropConnect; Merity et al. 2018). It takes effect in `SkipLayers` and
            `SkipLSTM`; in training, a call of the cell itself raises an error.
        zoneout: Rate at which units keep their value of State(t-1), with a new mask at each step (Krueger et
            al. 2017). In evaluation the expected value is used. One rate for h and the cell state, or one
            for each array of the state, h first.
        learnable_carry: Whether to learn the initial state, which all sequences share, instead of zeros.
        return_decision: Whether to return `SkipOutput` (h and the decision) instead of h.
        dtype: Dtype in which matrices are multiplied; `param_dtype` by default. With bfloat16 the
            parameters, biases, sums, states and results stay float32; see `functional.product`.
        param_dtype: Dtype of the parameters, and of the state unless `dtype` is wider.
        rngs: Source of the initial parameters.

    Attributes:
        deterministic: Whether choices are greedy by default and nothing is dropped. Set by `.train()`,
            `.eval()` and `nnx.view`.
        weights: Parameters of the transition.
        agent: Parameters of the time skip; None if it has none.
        depth: Parameters of the depth skip; None if there are none.
        initial: Learned initial state; None if the initial state is zeros.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax import functional as F
        >>> cell = SkipCell(3, 8, F.Dynamic(5), transition=F.GRU(), rngs=nnx.Rngs(0))
        >>> nnx.RNN(cell)(jnp.ones((2, 7, 3))).shape
        (2, 7, 8)
    """

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
        kernel_init: Initializer = _lecun_normal,
        recurrent_kernel_init: Initializer = _orthogonal,
        bias_init: Initializer = _zeros,
        forget_bias: float = 0.0,
        agent_kernel_init: Initializer | None = None,
        agent_input_kernel_init: Initializer | None = None,
        agent_bias_init: Initializer = _zeros,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        zoneout: float | Sequence[float] = 0.0,
        learnable_carry: bool = False,
        return_decision: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        _check_sizes(in_features, hidden_features, agent_features)
        check_pieces(skip, transition, depth_skip)
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.agent_features = agent_features
        self.recurrence = F.Recurrence(skip, transition, depth_skip)
        self.recurrent_dropout, self.weight_dropout = as_rates((recurrent_dropout, weight_dropout), 2)
        if self.weight_dropout and not hasattr(transition, "recurrent"):
            raise UserError(
                "weight_dropout drops params that multiply the state: name them in "
                f"{type(transition).__name__}.recurrent"
            )
        self.zoneout = _zoneout_rates(zoneout, transition)
        self.return_decision = return_decision
        self.dtype = param_dtype if dtype is None else dtype
        self.param_dtype = param_dtype
        self.state_dtype = wider(self.dtype, param_dtype)
        self.deterministic = False

        init = F.Initializers(kernel_init, recurrent_kernel_init, bias_init, forget_bias, param_dtype)
        params = self.recurrence.init(
            rngs.params(),
            in_features,
            hidden_features,
            below=below_features,
            agent_features=agent_features,
            init=init,
            agent_init=init._replace(
                kernel=agent_kernel_init or kernel_init,
                bias=agent_bias_init,
                agent_input=agent_input_kernel_init,
            ),
        )
        self.weights = Weights(params.transition)
        self.agent = nnx.data(None if params.skip is None else Weights(params.skip))
        self.depth = nnx.data(None if params.depth is None else Weights(params.depth))
        learned = F.zero_state(transition, (hidden_features,), param_dtype) if learnable_carry else None
        self.initial = nnx.data(None if learned is None else Weights(learned))

    @property
    def skip(self) -> F.TimeSkip:
        """Time skip of the cell: which earlier state enters a step."""
        return self.recurrence.time_skip

    @property
    def num_feature_axes(self) -> int:
        """Number of feature axes of an input: 1, because an input is a vector."""
        return 1

    @property
    def spec(self) -> F.LayerSpec:
        """Static description of a layer that runs this cell."""
        return F.LayerSpec(
            self.recurrence,
            self.hidden_features,
            recurrent_dropout=self.recurrent_dropout,
            weight_dropout=self.weight_dropout,
            zoneout=self.zoneout,
            dtype=jnp.dtype(self.dtype),
            state_dtype=jnp.dtype(self.state_dtype),
        )

    def raw_params(self) -> F.LayerParams:
        """Return the weights as they are stored."""
        return F.LayerParams(
            self.weights.read(),
            None if self.agent is None else self.agent.read(),
            None if self.depth is None else self.depth.read(),
        )

    def params(self) -> F.LayerParams:
        """Return the weights for the pure functions, with matrices cast to `dtype`."""
        return F.cast_matrices(self.raw_params(), self.dtype)

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs = None,
        carry_init: Initializer | None = None,
    ) -> F.SkipCarry:
        """Return a carry whose K slots hold the initial state.

        Args:
            input_shape: Shape of one step's input, (*batch, in_features).
            rngs: An `nnx.Rngs` (its `carry` stream), a stream, a PRNG key, or one key for each example,
                (*batch,). If None, the carry has no keys, and a step that needs a key raises an error.
            carry_init: Initializer of the state, used instead of zeros or the learned state.

        Raises:
            UserError: `carry_init` or recurrent dropout needs a key, and `rngs` is None.
        """
        batch, key = tuple(input_shape[:-1]), as_key(rngs)
        drops = self.recurrent_dropout > 0.0 and not self.deterministic
        if key is None and (drops or carry_init is not None):
            require_key(None, "this cell")  # raises
        if key is None:
            return F.initial_carry(None, self.recurrence, self.initial_state(batch))
        noise_key, mask_key, init_key = split_each(key, 3)
        state = self.initial_state(batch)
        if carry_init is not None:
            # An initializer draws the array of all examples with one key; its fan-in includes the batch.
            keys = jax.random.split(init_key.reshape(-1)[0], len(state))
            drawn = (carry_init(k, array.shape, array.dtype) for k, array in zip(keys, state, strict=True))
            state = type(state)(*drawn)
        carry = F.initial_carry(noise_key, self.recurrence, state)
        if not drops:
            return carry
        return draw_recurrent_mask(self.spec, carry, example_keys(mask_key, batch))

    def initial_state(self, batch: tuple[int, ...]) -> Any:
        """Return the initial state of all sequences, zeros or learned, each array (*batch, hidden)."""
        return F.initial_state(self.spec, self.learned_state(), tuple(batch))

    def learned_state(self) -> Any:
        """Return the learned initial state, each array (hidden,); None if the initial state is zeros."""
        return None if self.initial is None else self.initial.read()

    def restart_carry(self, carry: F.SkipCarry) -> F.SkipCarry:
        """Return `carry` with only its newest state kept; the initial state takes the place of the others."""
        return F.restart_carry(carry, self.recurrence, self.initial_state(carry.step.shape))

    def __call__(
        self,
        carry: F.SkipCarry,
        inputs: Float[Array, "*batch in"],
        *,
        below: Float[Array, "*batch below"] | None = None,
        action: Int[Array, "*batch"] | None = None,
        policy: F.Policy | None = None,
    ) -> tuple[F.SkipCarry, Any]:
        """Take one step.

        Args:
            carry: Carry from `initialize_carry` or from the previous step.
            inputs: Input x(t), (*batch, in_features).
            below: Input of the depth skip, (*batch, below_features).
            action: Actions to replay instead of choosing, k in 1..K, (*batch,); None to choose.
            policy: How choices are made. By default greedy if `deterministic`, and sampled otherwise.

        Returns:
            The new carry, and h(t); with `return_decision` the new carry and `SkipOutput`.

        Raises:
            UserError: An argument does not fit, the carry has no key or mask where it needs one, or weight
                dropout is active.
        """
        check_inputs(inputs, self.in_features, "(*batch, in)", 1)
        batch = inputs.shape[:-1]
        F.check_carry(self.recurrence, carry, batch, self.hidden_features)
        check_below(self.recurrence, below, batch, self.hidden_features)
        policy = policy_or_default(policy, self.deterministic)
        F.check_policy(policy, self.skip.max_skip, batch)
        if action is not None:
            check_actions(self.skip, action, batch, "(*batch,)")
        if not self.deterministic:
            self._check_drops(carry)
        draws = self.skip.draws(policy.mode, action is not None)
        draws = draws or (any(self.zoneout) and not self.deterministic)
        if carry.key is None and draws:
            raise UserError(
                "this cell draws, and its carry has no keys: make the carry with "
                "initialize_carry(input_shape, rngs), or call .eval()"
            )
        carry, output = _step(
            self.spec, self.raw_params(), carry, inputs, below, action, policy, self.deterministic
        )
        return carry, output if self.return_decision else output.h

    def _check_drops(self, carry: F.SkipCarry) -> None:
        """Raise a `UserError` if a step in training could not drop what the cell has rates for."""
        if self.weight_dropout > 0.0:
            raise UserError(
                "weight_dropout drops the same weights at all steps, which a cell alone cannot: "
                "run it in SkipLayers, or call .eval()"
            )
        if self.recurrent_dropout > 0.0 and carry.recurrent_mask is None:
            raise UserError(
                "recurrent_dropout needs a mask, and the carry has none: make the carry with this cell's "
                "initialize_carry(input_shape, rngs), or call .eval()"
            )


@partial(jax.jit, static_argnames=("spec", "deterministic"))
def _step(
    spec: F.LayerSpec,
    params: F.LayerParams,
    carry: F.SkipCarry,
    x: Float[Array, "*batch in"],
    below: Float[Array, "*batch below"] | None,
    action: Int[Array, "*batch"] | None,
    policy: F.Policy,
    deterministic: bool,
) -> tuple[F.SkipCarry, F.SkipOutput]:
    """Take one step; the function is compiled even if it is called outside of `jit`."""
    params = F.cast_matrices(params, spec.dtype)
    inputs = F.project_inputs(params, x, spec.recurrence, below=below, action=action)
    inputs = inputs._replace(zoneout_mask=zoneout_mask(spec, carry, deterministic=deterministic))
    mask = carry.recurrent_mask
    if deterministic:  # a carry from training may have a mask
        carry = carry._replace(recurrent_mask=None)
    carry, output = F.recurrent_step(params, carry, inputs, spec.recurrence, policy)
    return carry._replace(recurrent_mask=mask), output
