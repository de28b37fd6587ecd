"""LSTM cells with a skip over time, as Flax NNX cells that own their parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.keys import example_keys, split_each

Initializer = Callable[..., Any]
_lecun_normal = nnx.initializers.lecun_normal()
_orthogonal = nnx.initializers.orthogonal()
_zeros = nnx.initializers.zeros_init()


class SkipLSTMCell(nnx.RNNCellBase):
    """An LSTM cell into which one of the last K states, or a mean of them, enters.

    Works wherever Flax's own cells do: `nnx.RNN(cell)`, with `seq_lengths` and `return_carry`, and
    `nnx.Bidirectional`. For training the agent use `SkipLSTM`, which returns its decisions beside h, or
    `return_decision=True`.

    Gui et al. (2019), Eq. 1 and 2; `functional.skip_lstm_step` holds the mathematics.

    Args:
        in_features: size of the input.
        hidden_features: size of h and c.
        skip: which state enters.
        agent_features: hidden units of the agent; the paper's is 50. Ignored without an agent.
        kernel_init: initializer of W_x, one (in, hidden) block per gate.
        recurrent_kernel_init: initializer of W_h, one (hidden, hidden) block per gate.
        bias_init: initializer of the gates' biases.
        forget_bias: added to the forget gate's initial bias.
        agent_kernel_init: initializer of the agent's weights; by default `kernel_init`.
        agent_input_kernel_init: initializer of those that act on x(t), where they are to have a scale of
            their own, as for one-hot inputs: few of their features are not zero.
        agent_bias_init: initializer of the agent's biases.
        recurrent_dropout: rate at which features of the entering h are dropped, the same ones at all
            steps of a sequence, while `deterministic` is False.
        weight_dropout: rate at which entries of W_h are dropped where a call brings a `weight_key`, the same
            ones for all sequences and steps (DropConnect, as in Merity et al. 2018); see `SkipLSTM`.
        learnable_carry: learn the initial h and c (shared by all sequences); otherwise they are zeros.
        return_decision: return `SkipOutput` (h with the decision's trace) instead of h alone.
        dtype: in which matrices are multiplied; by default `param_dtype`. With bfloat16 the parameters,
            biases, sums, states and all that is returned stay float32; see `functional.product`.
        param_dtype: dtype of the parameters, and of the state unless `dtype` is wider.
        rngs: source of the initial parameters.

    Attributes:
        deterministic: set by `.train()` and `.eval()`: greedy choices and no dropout when True.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax.functional import TimeSkip
        >>> cell = SkipLSTMCell(3, 8, TimeSkip(kind="dynamic", max_skip=5), rngs=nnx.Rngs(0))
        >>> nnx.RNN(cell)(jnp.ones((2, 7, 3))).shape
        (2, 7, 8)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        skip: F.TimeSkip,
        *,
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
        learnable_carry: bool = False,
        return_decision: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        for name, size in (
            ("in_features", in_features),
            ("hidden_features", hidden_features),
            ("agent_features", agent_features),
        ):
            if size < 1:
                raise UserError(f"{name} must be at least 1, got {size}")
        for rate in (recurrent_dropout, weight_dropout):
            if not 0.0 <= rate < 1.0:
                raise UserError(f"a dropout rate lies in [0, 1), got {rate}")
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.skip = skip
        self.recurrent_dropout = recurrent_dropout
        self.weight_dropout = weight_dropout
        self.return_decision = return_decision
        self.dtype = param_dtype if dtype is None else dtype
        self.param_dtype = param_dtype
        self.state_dtype = jnp.promote_types(self.dtype, param_dtype)
        self.deterministic = False

        def blocks(init: Initializer, rows: int) -> Array:
            shape = (rows, hidden_features)
            return jnp.concatenate([init(rngs.params(), shape, param_dtype) for _ in range(4)], axis=1)

        self.w_x = nnx.Param(blocks(kernel_init, in_features))
        self.w_h = nnx.Param(blocks(recurrent_kernel_init, hidden_features))
        bias = bias_init(rngs.params(), (4 * hidden_features,), param_dtype)
        self.b = nnx.Param(bias.at[2 * hidden_features : 3 * hidden_features].add(forget_bias))

        agent = None
        if skip.has_agent:
            agent = Agent(
                in_features,
                hidden_features,
                agent_features,
                skip.max_skip,
                kernel_init=agent_kernel_init or kernel_init,
                input_kernel_init=agent_input_kernel_init,
                bias_init=agent_bias_init,
                dtype=self.dtype,
                param_dtype=param_dtype,
                rngs=rngs,
            )
        self.agent = nnx.data(agent)

        def learned() -> nnx.Param | None:
            return nnx.Param(jnp.zeros((hidden_features,), param_dtype)) if learnable_carry else None

        self.h0 = nnx.data(learned())
        self.c0 = nnx.data(learned())

    @property
    def num_feature_axes(self) -> int:
        """One: an input is a vector."""
        return 1

    def params(self, weight_key: Key[Array, ""] | None = None) -> F.SkipLSTMParams:
        """Returns the weights as the pure functions take them: matrices in the dtype that multiplies.

        Args:
            weight_key: with which entries of W_h are dropped at `weight_dropout`; None drops none.
        """
        w_h = F.weight_dropout(weight_key, self.weight_dropout, self.w_h[...])
        lstm = F.LSTMParams(self.w_x[...].astype(self.dtype), w_h.astype(self.dtype), self.b[...])
        return F.SkipLSTMParams(lstm, None if self.agent is None else self.agent.params())

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        carry_init: Initializer | None = None,
    ) -> F.SkipCarry:
        """A carry whose K slots hold the initial state, with one PRNG key per example.

        Args:
            input_shape: shape of one step's input, (*batch, in_features).
            rngs: an `nnx.Rngs` (its `carry` stream) or a stream, or a PRNG key, or one key per example,
                (*batch,); key 0 when None.
            carry_init: initializer of h and c instead of zeros or the learned state.
        """
        if isinstance(rngs, nnx.Rngs):
            rngs = rngs.carry
        if rngs is None:
            key = jax.random.key(0)
        elif isinstance(rngs, nnx.RngStream):
            key = rngs()
        else:
            key = rngs
        noise_key, dropout_key, init_key = split_each(key, 3)
        batch = tuple(input_shape[:-1])
        state_shape = (*batch, self.hidden_features)
        if carry_init is not None:
            # An initializer draws all states at once: its fan-in is that of the whole array.
            h_key, c_key = jax.random.split(init_key.reshape(-1)[0])
            h = carry_init(h_key, state_shape, self.state_dtype)
            c = carry_init(c_key, state_shape, self.state_dtype)
        elif self.h0 is not None:
            leading = (1,) * len(batch) + (-1,)
            h = jnp.broadcast_to(self.h0[...].reshape(leading), state_shape).astype(self.state_dtype)
            c = jnp.broadcast_to(self.c0[...].reshape(leading), state_shape).astype(self.state_dtype)
        else:
            h = c = jnp.zeros(state_shape, self.state_dtype)
        carry = F.initial_carry(example_keys(noise_key, batch), self.skip.max_skip, h, c)
        return self.draw_recurrent_mask(carry, dropout_key)

    def draw_recurrent_mask(self, carry: F.SkipCarry, key: Array) -> F.SkipCarry:
        """Returns the carry with a fresh recurrent-dropout mask, or with none in evaluation.

        Args:
            carry: any carry of this cell.
            key: one PRNG key, from which each example's own is split, or one per example, (*batch,).
        """
        if self.recurrent_dropout == 0.0 or self.deterministic:
            return carry._replace(recurrent_mask=None)
        batch = carry.step.shape
        mask = F.dropout_mask(
            example_keys(key, batch), self.recurrent_dropout, (*batch, self.hidden_features), self.state_dtype
        )
        return carry._replace(recurrent_mask=mask)

    def __call__(
        self,
        carry: F.SkipCarry,
        inputs: Float[Array, "*batch in"],
        *,
        action: Int[Array, "*batch"] | None = None,
        mode: ActionMode | None = None,
        temperature: float | Float[Array, ""] = 1.0,
        mix: float | Float[Array, ""] | None = None,
        policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
    ) -> tuple[F.SkipCarry, Any]:
        """One step.

        Args:
            carry: from `initialize_carry` or the step before.
            inputs: x(t), (*batch, in_features).
            action: k in 1..K to be replayed.
            mode: `sample`, `greedy` or a relaxation; by default greedy when `deterministic`.
            temperature: of attention and relaxations.
            mix: λ, in place of the skip's own.
            policy_mask: False for skips the agent may not choose.

        Returns:
            The new carry, and h(t), or `SkipOutput` with `return_decision`.
        """
        params = self.params()
        step_inputs = F.project_inputs(params, inputs, self.skip, action=action)
        carry, output = F.skip_lstm_step(
            params,
            carry,
            step_inputs,
            self.skip,
            mode=mode or self.default_mode,
            temperature=temperature,
            mix=mix,
            policy_mask=policy_mask,
        )
        return carry, output if self.return_decision else output.h

    @property
    def default_mode(self) -> ActionMode:
        """How the agent chooses when the caller does not say."""
        return "greedy" if self.deterministic else "sample"


class DynamicSkipLSTMCell(SkipLSTMCell):
    """An LSTM cell whose agent picks which of the last K states enters (Gui et al. 2019).

    Args:
        in_features: size of the input.
        hidden_features: size of h and c.
        max_skip: K; the paper's language model has 5.
        mix: λ, the weight of the chosen state against the previous one.
        agent_input: what the agent sees beside x(t); see `TimeSkip`.
        empty_slots: what stands for states that do not exist yet; see `TimeSkip`.
        first_step: who decides at the first step; see `TimeSkip`.
        **kwargs: see `SkipLSTMCell`.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> cell = DynamicSkipLSTMCell(3, 8, max_skip=5, mix=0.5, rngs=nnx.Rngs(0))
        >>> nnx.RNN(cell)(jnp.ones((2, 7, 3)), seq_lengths=jnp.array([7, 4])).shape
        (2, 7, 8)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        max_skip: int = 5,
        mix: float = 1.0,
        agent_input: str = "previous",
        empty_slots: str = "initial",
        first_step: str = "agent",
        **kwargs: Any,
    ):
        skip = F.TimeSkip("dynamic", max_skip, mix, agent_input, empty_slots, first_step)
        super().__init__(in_features, hidden_features, skip, **kwargs)


class Agent(nnx.Module):
    """Owns the weights of Eq. 1's MLP, so that an optimizer can tell the agent's from the network's."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        agent_features: int,
        max_skip: int,
        *,
        kernel_init: Initializer,
        input_kernel_init: Initializer | None = None,
        bias_init: Initializer,
        dtype: Any,
        param_dtype: Any,
        rngs: nnx.Rngs,
    ):
        self.dtype = dtype
        # One matrix acts on h ⊕ x: its fan-in, and hence its scale, is that of the concatenation.
        first = kernel_init(rngs.params(), (hidden_features + in_features, agent_features), param_dtype)
        self.w_h = nnx.Param(first[:hidden_features])
        if input_kernel_init is None:
            self.w_x = nnx.Param(first[hidden_features:])
        else:
            self.w_x = nnx.Param(input_kernel_init(rngs.params(), (in_features, agent_features), param_dtype))
        self.b = nnx.Param(bias_init(rngs.params(), (agent_features,), param_dtype))
        self.w_out = nnx.Param(kernel_init(rngs.params(), (agent_features, max_skip), param_dtype))
        self.b_out = nnx.Param(bias_init(rngs.params(), (max_skip,), param_dtype))

    def params(self) -> F.AgentParams:
        """Returns the weights as the pure functions take them: matrices in the dtype that multiplies."""
        w_h, w_x, w_out = (w[...].astype(self.dtype) for w in (self.w_h, self.w_x, self.w_out))
        return F.AgentParams(w_h, w_x, self.b[...], w_out, self.b_out[...])
