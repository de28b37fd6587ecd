"""Recurrent cells with skips over time and depth, as Flax NNX cells that own their parameters."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.keys import check_keys, example_keys, split_each
from dynskip_jax.nn.modes import HasModes
from dynskip_jax.nn.weights import Weights

Initializer = Callable[..., Any]
_lecun_normal = nnx.initializers.lecun_normal()
_orthogonal = nnx.initializers.orthogonal()
_zeros = nnx.initializers.zeros_init()
_SHARED = 2**31 - 1  # no split of a call's key goes so far: split(key, n)[i] is fold_in(key, i)


class SkipCell(HasModes, nnx.RNNCellBase):
    """A recurrent cell: any transition, any skip over time, any skip over depth.

    Works wherever Flax's own cells do: `nnx.RNN(cell)`, with `seq_lengths` and `return_carry`, and
    `nnx.Bidirectional`. For training an agent use `SkipLayer`, which returns its decisions beside h, or
    `return_decision=True`; the decisions past the end of a sequence are then those of a step like any other
    (`nnx.RNN` tells a cell nothing of lengths), so losses have to be told what is `valid`. Give
    `nnx.Bidirectional` the `merge_fn` that is `merge_directions`: its own concatenates decisions along time.

    `functional.recurrent_step` holds the mathematics.

    Args:
        in_features: size of the input.
        hidden_features: size of h, and of every other array of the state.
        skip: which earlier state enters a step.
        transition: how a state and an input become the new state.
        depth_skip: what enters from further below in a stack; the cell is then called with `below`.
        below_features: size of that, by default `hidden_features`.
        agent_features: hidden units of the agent; the paper's is 50. Ignored without an agent.
        kernel_init: initializer of matrices on the input, one (in, hidden) block for each gate.
        recurrent_kernel_init: initializer of matrices on the state, one (hidden, hidden) block for each gate.
        bias_init: initializer of biases and other vectors.
        forget_bias: added to the forget gate's initial bias.
        agent_kernel_init: initializer of the time skip's weights; by default `kernel_init`.
        agent_input_kernel_init: initializer of those of an agent that act on x(t), where they are to have a
            scale of their own, as for one-hot inputs: few of their features are not zero.
        agent_bias_init: initializer of the time skip's biases.
        recurrent_dropout: rate at which features of the entering h are dropped, the same ones at all
            steps of a sequence, while `deterministic` is False.
        weight_dropout: rate at which entries of the matrices on the state are dropped while `deterministic`
            is False, the same ones for all sequences and steps (DropConnect, as in Merity et al. 2018); by
            `SkipLayer` and `SkipStack` alone.
        zoneout: rate at which units of State(t-1) stay instead of being written anew, each step drawing its
            own, while `deterministic` is False; otherwise so much of them stays (Krueger et al. 2017). One
            rate for all arrays of the state, or one for each, h first.
        learnable_carry: learn the initial state (shared by all sequences); otherwise it is zeros.
        return_decision: return `SkipOutput` (h with the decision's trace) instead of h alone.
        dtype: in which matrices are multiplied; by default `param_dtype`. With bfloat16 the parameters,
            biases, sums, states and all that is returned stay float32; see `functional.product`.
        param_dtype: dtype of the parameters, and of the state unless `dtype` is wider.
        rngs: source of the initial parameters.

    Attributes:
        deterministic: set by `.train()` and `.eval()`: greedy choices and no dropout when True.
        weights: the transition's parameters.
        agent: the time skip's; None where it has none.
        depth: the depth skip's; None without.
        initial: the learned initial state; None without.

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
        skip: F.TimeSkip,
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
        for name, size in (
            ("in_features", in_features),
            ("hidden_features", hidden_features),
            ("agent_features", agent_features),
        ):
            if size < 1:
                raise UserError(f"{name} must be at least 1, got {size}")
        if not isinstance(skip, F.TimeSkip):
            raise UserError(f"skip is a time skip, such as functional.Dynamic(5), not {skip!r}")
        if not isinstance(transition, F.Transition):
            raise UserError(f"transition is one, such as functional.GRU(), not {transition!r}")
        if depth_skip is not None and not isinstance(depth_skip, F.DepthSkip):
            raise UserError(f"depth_skip is one, such as functional.GatedToOutput(), not {depth_skip!r}")
        arrays = len(transition.state._fields)
        rates = (zoneout,) * arrays if isinstance(zoneout, int | float) else tuple(zoneout)
        if len(rates) != arrays:
            raise UserError(
                f"zoneout has one rate, or one for each of {transition.state._fields}, got {rates}"
            )
        for rate in (recurrent_dropout, weight_dropout, *rates):
            if not 0.0 <= rate < 1.0:
                raise UserError(f"a rate of dropout or zoneout lies in [0, 1), got {rate}")
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.agent_features = agent_features
        self.recurrence = F.Recurrence(skip, transition, depth_skip)
        self.recurrent_dropout = recurrent_dropout
        self.weight_dropout = weight_dropout
        self.zoneout = rates
        self.return_decision = return_decision
        self.dtype = param_dtype if dtype is None else dtype
        self.param_dtype = param_dtype
        self.state_dtype = jnp.promote_types(self.dtype, param_dtype)
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
        """Which earlier state enters a step."""
        return self.recurrence.time_skip

    @property
    def num_feature_axes(self) -> int:
        """One: an input is a vector."""
        return 1

    def params(self, weight_key: Key[Array, ""] | None = None) -> F.LayerParams:
        """Returns the weights as the pure functions take them: matrices in the dtype that multiplies.

        Args:
            weight_key: with which entries of the matrices on the state are dropped at `weight_dropout`; None
                drops none.
        """
        weights = self.weights.read(self.dtype)
        if weight_key is not None and self.weight_dropout > 0.0:
            weights = _dropped(weights, weight_key, self.weight_dropout)
        return F.LayerParams(
            weights,
            None if self.agent is None else self.agent.read(self.dtype),
            None if self.depth is None else self.depth.read(self.dtype),
        )

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
                (*batch,). None where nothing is drawn: no choice is sampled, no dropout.
            carry_init: initializer of the state instead of zeros or the learned state.

        Raises:
            UserError: something is drawn, and there is no key.
        """
        if rngs is None and (self._draws() or carry_init is not None):
            require_key(None, "this cell")  # says what to do
        return self._new_carry(input_shape[:-1], as_key(rngs), self.deterministic, carry_init)

    def _new_carry(
        self,
        batch: Sequence[int],
        key: Key[Array, "..."],
        deterministic: bool,
        carry_init: Initializer | None = None,
    ) -> F.SkipCarry:
        """What `initialize_carry` returns, from a key, or one for each example."""
        batch = tuple(batch)
        check_keys(key)
        noise_key, dropout_key, init_key = split_each(key, 3)
        state_shape = (*batch, self.hidden_features)
        kind = self.recurrence.transition.state
        if carry_init is not None:
            # An initializer draws all states at once: its fan-in is that of the whole array.
            keys = jax.random.split(init_key.reshape(-1)[0], len(kind._fields))
            state = kind(*(carry_init(k, state_shape, self.state_dtype) for k in keys))
        else:
            state = self.initial_state(batch)
        carry = F.initial_carry(noise_key, self.recurrence, state)
        return self._draw_recurrent_mask(carry=carry, key=dropout_key, deterministic=deterministic)

    def _draws(
        self, policy: F.Policy | None = None, *, replayed: bool = False, deterministic: bool | None = None
    ) -> bool:
        """Whether a call draws anything: choices, a recurrent-dropout mask or zoneout.

        Args:
            policy: how choices are made, by default as the cell does.
            replayed: whether they are given.
            deterministic: overrides the cell's own setting.
        """
        mode = self._policy(policy=policy, deterministic=deterministic).mode
        samples = self.skip.draws(mode, replayed)
        drops = self.recurrent_dropout > 0 or any(rate > 0 for rate in self.zoneout)
        return samples or (drops and not self._is_deterministic(deterministic))

    def initial_state(self, batch: tuple[int, ...]) -> Any:
        """The state every sequence starts from, zeros or learned, each array (*batch, hidden)."""
        shape = (*batch, self.hidden_features)
        if self.initial is None:
            return F.zero_state(self.recurrence.transition, shape, self.state_dtype)
        leading = (1,) * len(batch) + (-1,)

        def spread(array: Float[Array, " hidden"]) -> Float[Array, "*batch hidden"]:
            return jnp.broadcast_to(array.reshape(leading), shape).astype(self.state_dtype)

        return jax.tree.map(spread, self.initial.read())

    def restart_carry(self, carry: F.SkipCarry) -> F.SkipCarry:
        """Keeps the newest state and puts the initial one in place of the others; see `functional`."""
        return F.restart_carry(carry, self.recurrence, self.initial_state(carry.step.shape))

    def _draw_recurrent_mask(
        self, carry: F.SkipCarry, key: Array, *, deterministic: bool | None = None
    ) -> F.SkipCarry:
        """Returns the carry with a fresh recurrent-dropout mask, or with none in evaluation.

        Args:
            carry: any carry of this cell.
            key: one PRNG key, from which each example's own is split, or one per example, (*batch,).
            deterministic: overrides the cell's own setting.
        """
        if self.recurrent_dropout == 0.0 or self._is_deterministic(deterministic):
            return carry._replace(recurrent_mask=None)
        batch = carry.step.shape
        mask = F.dropout_mask(
            example_keys(key, batch), self.recurrent_dropout, (*batch, self.hidden_features), self.state_dtype
        )
        return carry._replace(recurrent_mask=mask)

    def _zoneout_mask(
        self, carry: F.SkipCarry, steps: int | None = None, *, deterministic: bool | None = None
    ) -> Any:
        """Returns what zoneout keeps of the steps that follow a carry; None without zoneout.

        Args:
            carry: any carry of this cell.
            steps: how many steps, which become the axis after the batch; None for one, without an axis.
            deterministic: overrides the cell's own setting.
        """
        if not any(self.zoneout):
            return None
        keys, step = carry.key, carry.step
        if steps is not None:
            keys = keys[..., None]
            step = step[..., None] + jnp.arange(steps).reshape((1,) * step.ndim + (-1,))
        return F.zoneout(
            keys,
            step,
            self.zoneout,
            self.hidden_features,
            self.state_dtype,
            deterministic=self._is_deterministic(deterministic),
        )

    def __call__(
        self,
        carry: F.SkipCarry,
        inputs: Float[Array, "*batch in"],
        *,
        below: Float[Array, "*batch below"] | None = None,
        action: Int[Array, "*batch"] | None = None,
        policy: F.Policy | None = None,
    ) -> tuple[F.SkipCarry, Any]:
        """One step.

        Args:
            carry: from `initialize_carry` or the step before.
            inputs: x(t), (*batch, in_features).
            below: what the skip over depth brings, (*batch, below_features).
            action: k in 1..K to be replayed.
            policy: how choices are made; by default greedy when `deterministic`, and sampled otherwise.

        Returns:
            The new carry, and h(t), or `SkipOutput` with `return_decision`.

        Raises:
            UserError: the input or the carry is not of this cell, or weights would have to be dropped.
        """
        self._check_inputs(inputs, "(*batch, in)", 1)
        F.check_carry(self.recurrence, carry, inputs.shape[:-1], self.hidden_features)
        if self.weight_dropout > 0.0 and not self.deterministic:
            raise UserError(
                "weight_dropout drops the same weights at all steps, which a cell alone cannot: "
                "run it by SkipLayer, or call .eval()"
            )
        params = self.params()
        step_inputs = F.project_inputs(params, inputs, self.recurrence, below=below, action=action)
        step_inputs = step_inputs._replace(zoneout_mask=self._zoneout_mask(carry=carry))
        policy, mask = self._policy(policy=policy), carry.recurrent_mask
        if self.deterministic:  # a carry made in training has one
            carry = carry._replace(recurrent_mask=None)
        carry, output = F.recurrent_step(params, carry, step_inputs, self.recurrence, policy)
        carry = carry._replace(recurrent_mask=mask)
        return carry, output if self.return_decision else output.h

    def _check_inputs(self, inputs: Any, shape: str, axes: int) -> None:
        """Raises a `UserError` unless inputs are floats of so many axes or more, the last `in_features`."""
        expected = shape.replace("in)", f"{self.in_features})")
        found = described(inputs)
        if not hasattr(inputs, "dtype"):
            raise UserError(f"expected inputs {expected}, got {found}")
        if not jnp.issubdtype(inputs.dtype, jnp.floating):
            raise UserError(f"expected inputs {expected} of floats, got {found}: embed tokens first")
        if inputs.ndim < axes or inputs.shape[-1] != self.in_features:
            raise UserError(f"expected inputs {expected}, got {found}")

    def _policy(self, *, policy: F.Policy | None = None, deterministic: bool | None = None) -> F.Policy:
        """How choices are made: as the caller says; by default greedy in evaluation, else sampled."""
        if policy is None:
            return F.Policy("greedy" if self._is_deterministic(deterministic) else "sample")
        if not isinstance(policy, F.Policy):
            raise UserError(f"policy is a Policy, such as Policy('greedy'), not {policy!r}")
        return policy

    def _is_deterministic(self, deterministic: bool | None) -> bool:
        return self.deterministic if deterministic is None else deterministic


def as_key(rngs: nnx.Rngs | nnx.RngStream | Array | None) -> Array:
    """A key out of a stream, anew at each call, or the key that was given; key 0 for None."""
    if isinstance(rngs, nnx.Rngs):
        rngs = rngs.carry
    if rngs is None:
        return jax.random.key(0)
    return rngs() if isinstance(rngs, nnx.RngStream) else rngs


def require_key(rngs: nnx.Rngs | nnx.RngStream | Array | None, what: str) -> Array:
    """As `as_key`, where `what` cannot do without.

    Raises:
        UserError: there is none.
    """
    if rngs is None:
        raise UserError(
            f"{what} draws (choices, dropout, zoneout): pass rngs=, a PRNG key or nnx.Rngs, or call .eval(), "
            "after which only random skips and a policy that samples draw"
        )
    key = as_key(rngs)
    check_keys(key)
    return key


def shared_key(keys: Key[Array, "..."]) -> Key[Array, ""]:
    """One key for what is dropped for all examples alike, made of a call's key or of the first example's."""
    return jax.random.fold_in(keys.reshape(-1)[0], _SHARED)


def _with_options_of(cls: type) -> Callable[[Callable], Callable]:
    """Decorates an `__init__` that hands **kwargs on to a class: its signature names them."""

    def decorate(function: Callable) -> Callable:
        signature, options = inspect.signature(function), inspect.signature(cls.__init__).parameters
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            p for p in options.values() if p.kind is p.KEYWORD_ONLY and p.name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])
        return function

    return decorate


class DynamicSkipLSTMCell(SkipCell):
    """An LSTM cell whose agent picks which of the last K states enters (Gui et al. 2019).

    Args:
        in_features: size of the input.
        hidden_features: size of h and c.
        max_skip: K; the paper's language model has 5.
        mix: λ, the weight of the chosen state against the previous one.
        agent_input: what the agent sees beside x(t); see `functional.Dynamic`.
        empty_slots: what stands for states that do not exist yet; see `functional.Dynamic`.
        stride: only every so many-th state may be chosen; see `functional.Dynamic`.
        first_step: who decides at the first step; see `functional.Dynamic`.
        **kwargs: the options of `SkipCell` after its `skip`.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> cell = DynamicSkipLSTMCell(3, 8, max_skip=5, mix=0.5, rngs=nnx.Rngs(0))
        >>> nnx.RNN(cell)(jnp.ones((2, 7, 3)), seq_lengths=jnp.array([7, 4])).shape
        (2, 7, 8)
    """

    @_with_options_of(SkipCell)
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        max_skip: int = 5,
        mix: float = 1.0,
        agent_input: str = "previous",
        empty_slots: str = "initial",
        stride: int = 1,
        first_step: str = "agent",
        **kwargs: Any,
    ):
        skip = F.Dynamic(
            max_skip,
            mix,
            first_step=first_step,
            agent_input=agent_input,
            empty_slots=empty_slots,
            stride=stride,
        )
        super().__init__(in_features, hidden_features, skip, **kwargs)


def _dropped(weights: Any, key: Key[Array, ""], rate: float) -> Any:
    """Drops entries of the matrices that multiply the state: all but those named w_x…"""
    leaves, structure = jax.tree_util.tree_flatten_with_path(weights)
    keys = jax.random.split(key, len(leaves))

    def drop(path, leaf, key):
        is_recurrent = leaf.ndim > 1 and not path[0].name.startswith("w_x")
        return F.weight_dropout(key, rate, leaf) if is_recurrent else leaf

    return structure.unflatten([drop(path, leaf, k) for (path, leaf), k in zip(leaves, keys, strict=True)])
