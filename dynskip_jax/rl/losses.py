"""Losses that train agents, computed from the decisions of layers.

`loss` is the one to begin with: it trains a network together with its agents. Each loss is a mean
over all batch axes of a sum over steps and layers. It leaves out steps past the end of a
sequence, and takes each layer's direction into account. All arguments have the decisions' layout,
(*batch, time), or (time, *batch) for layers that are `time_major`. Rollouts are a leading batch
axis, which `functional.rollouts` makes; for `time_major` layers, `jax.vmap` needs `out_axes=1`. In
packed rows, returns include rewards of the row's later sequences.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.checks import check_number, known_values
from dynskip_jax.functional.decisions import DecisionTrace
from dynskip_jax.functional.engine.product import wider
from dynskip_jax.rl.baselines import leave_one_out

Values = Num[Array | np.ndarray, "..."]  # (*batch,) or (*batch, time)
Baseline = Callable[[Values, Bool[Array, "..."]], Values] | Sequence[Any] | Values | float | None


def reinforce(
    decisions: Any,
    reward: Values,
    *,
    baseline: Baseline = None,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 0.0,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return the surrogate loss whose gradient is minus that of the expected reward (REINFORCE, Eq.
    5).

    With a reward R for each row, and β = `entropy_coef`, the loss of a layer in one row is

        -Σ_t log π(a_t | s_t) · stop_gradient(R - baseline - β (Σ_t log π(a_t | s_t) + 1)).

    With a reward for each step, the return of step t starts at t, because an action cannot change
    what came
    before. The expected gradient is the same and its variance is smaller:

        -Σ_t log π(a_t | s_t) · stop_gradient(G_t - baseline_t - β),
        G_t = Σ_{u ≥ t} discount^(u - t) (r_u - β log π(a_u | s_u)).

    A layer that reads from the end is credited with u ≤ t, and a layer below one of the other
    direction with all u. Layers that do not sample, such as attention, contribute nothing. In a
    stack, the sampled entropy of a layer is that of its own choices: how they change the policies
    of layers above is ignored.

    Args:
        decisions: `out.decisions` of layers or of a model, or `out` itself; of sampled or replayed
            choices.
        reward: Reward of each row, (*batch,), or of each step, (*batch, time). Gradients are
            stopped.
        baseline: An array that is subtracted from `reward`, or, if it has steps and the reward has
            rows, from the return of each step; or a function `(returns, counted) -> baseline`, such
            as `leave_one_out`; or values V(s(t)) of a critic for each layer, a sequence of (*batch,
            time) or None. It must not depend on the action from whose return it is subtracted.
        discount: Discount per step of later rewards, in [0, 1]; only for a reward of each step.
        entropy_coef: β, the weight of the entropy inside the return (1 in the paper).
        weights: Weight of each row or step in the sum; 0 leaves it out of the baseline, too.
    """
    traces, reward, weights = _batch_major(decisions, reward=reward, weights=weights)
    reward = jax.lax.stop_gradient(reward)
    of_steps = reward.ndim == traces[0].action.ndim
    _check_coefficients(discount, entropy_coef, of_steps=of_steps)
    values: Sequence[Array | None] = (None,) * len(traces)
    if isinstance(baseline, Sequence):
        _check_values("baseline", traces, baseline)
        _, values = _batch_major(decisions, baseline=tuple(baseline))
    elif baseline is not None and not callable(baseline):
        baseline = jax.lax.stop_gradient(baseline)
        rows = traces[0].action.shape[:-1]
        if jnp.ndim(baseline) < len(
            rows
        ):  # a number, or one for each example and not for its rollouts
            baseline = jnp.broadcast_to(baseline, rows)
        _, baseline = _batch_major(decisions, baseline=baseline)
        if baseline.ndim > reward.ndim:
            values = (baseline,) * len(traces)
        elif baseline.ndim == reward.ndim:
            reward = reward - baseline
        else:
            reward = reward - baseline[..., None]
    total = _nothing(traces)
    for trace, value in zip(traces, values, strict=True):
        if trace.mode == "none":
            continue
        if trace.mode not in ("sample", "replayed"):
            raise UserError(
                f"{trace.mode} choices have no REINFORCE gradient: call model.train(), or pass "
                'policy=F.Policy("sample") and rngs= to the model; relaxed ones are trained by its own loss'
            )
        weight = _weight(trace, weights)
        counted = weight != 0
        log_prob = jnp.where(counted, trace.log_prob, 0)
        returns = _returns(trace, reward, counted, discount)
        if callable(baseline):
            returns = returns - baseline(returns, counted if of_steps else counted.any(axis=-1))
        if not of_steps:
            returns = returns[..., None]
        if value is not None:
            returns = returns - value
        if isinstance(entropy_coef, jax.Array) or entropy_coef:
            if of_steps or value is not None:
                later = _reward_to_go(
                    log_prob, discount if of_steps else 1.0, reverse=trace.reverse
                )
            else:
                later = log_prob.sum(axis=-1, keepdims=True)
            returns = returns - entropy_coef * (later + 1)
        # The product with an infinite advantage past the end would be NaN.
        advantage = jax.lax.stop_gradient(jnp.where(counted, returns, 0))
        total = total - _sum(log_prob * advantage, weight)
    return total


def entropy(decisions: Any, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return the entropy of the policies, Σ_t H(π(· | s_t)), differentiated directly.

    It has no sampling noise, but ignores how an action changes later entropies, and those of layers
    above. Subtract it from the loss: `- beta * rl.entropy(out.decisions)`. Arguments are those of
    `reinforce`.
    """
    traces, weights = _batch_major(decisions, weights=weights)
    sums = [
        _sum(trace.entropy, _weight(trace, weights)) for trace in traces if trace.mode != "none"
    ]
    return sum(sums, _nothing(traces))


def tokens_read(decisions: Any, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return the number of tokens read by layers that learn by gradient which ones to read.

    Add it to the loss: `+ cost * rl.tokens_read(out.decisions)`, with λ of Skip RNN (Campos et al.
    2018, Eq. 8) as cost. Arguments are those of `reinforce`.
    """
    traces, weights = _batch_major(decisions, weights=weights)
    sums = [
        _sum(trace.update, _weight(trace, weights))
        for trace in traces
        if trace.update_is_differentiable
    ]
    return sum(sums, _nothing(traces))


def critic_loss(
    decisions: Any,
    values: Sequence[Values | None],
    reward: Values,
    *,
    discount: float = 1.0,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return ½ Σ_t (V(s(t)) - G(t))², which trains the critics of `critic` (Greensmith et al.
    2004).

    Arguments are those of `reinforce`, with one array of `values` for each layer, or None.
    """
    _check_values("values", traces_of(decisions), values)
    traces, values, reward, weights = _batch_major(
        decisions, values=tuple(values), reward=reward, weights=weights
    )
    _check_coefficients(discount, of_steps=reward.ndim == traces[0].action.ndim)
    total = _nothing(traces)
    for trace, value in zip(traces, values, strict=True):
        if value is not None:
            weight = _weight(trace, weights)
            returns = _returns(trace, jax.lax.stop_gradient(reward), weight != 0, discount)
            returns = returns if returns.ndim == value.ndim else returns[..., None]
            error = jnp.where(weight != 0, value - returns, 0)
            total = total + 0.5 * _sum(jnp.square(error), weight)
    return total


def network_loss(decisions: Any, nll: Values, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return J_1, the mean over rows of `nll`, summed over the steps that count; see
    `reinforce`.
    """
    traces, nll, weights = _batch_major(decisions, nll=nll, weights=weights)
    nll = nll.astype(wider(nll.dtype, traces[0].log_prob.dtype))  # whole numbers are losses, too
    if nll.ndim == traces[0].action.ndim:
        return _sum(nll, _weight(traces[0], weights))
    weight = jnp.ones_like(nll) if weights is None else weights
    return _sum(nll[..., None], weight[..., None])


def paper_loss(decisions: Any, nll: Values, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return J_1 - J_2 of Gui et al. (2019), Eq. 3 to 6 as printed.

    The reward is the log-likelihood, the return contains the sampled entropy with β = 1, and there
    is no baseline. With an `nll` for each step, returns start at the action; see `reinforce`. It
    learns slowly; see `agent_loss`.
    """
    return network_loss(decisions, nll, weights=weights) + reinforce(
        decisions, -nll, entropy_coef=1.0, weights=weights
    )


def agent_loss(
    out: Any,
    reward: Values,
    *,
    baseline: Baseline = leave_one_out,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 0.02,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return the agents' part of `loss`, for sampled and for relaxed choices, from any reward.

    For sampled choices it is `reinforce` with a leave-one-out baseline, over rollouts or else over
    the batch, minus `entropy_coef` times the exact entropy of every step. Relaxed choices are
    trained by the loss of the network, so only the entropy remains. Arguments are those of
    `reinforce`; outputs have this function as a method.

    With a reward of each step it is a sum over steps: add it to a loss that is one, too, such as
    `network_loss(out, nll)`. In comparison with it, `nll.mean()` is divided by the number of steps,
    and it counts padding.
    """
    traces = traces_of(out)
    _, rewards = _batch_major(traces, reward=reward)
    _check_coefficients(discount, entropy_coef, of_steps=rewards.ndim == jnp.ndim(traces[0].action))
    _check_baseline(traces, baseline)
    total = -entropy_coef * entropy(traces, weights=weights)
    is_chosen = [trace.mode in ("sample", "replayed", "greedy") for trace in traces]
    if any(is_chosen):
        sampled = list(itertools.compress(traces, is_chosen))
        baseline = _of_layers(baseline, is_chosen)
        total += reinforce(sampled, reward, baseline=baseline, discount=discount, weights=weights)
    return total


def loss(
    out: Any,
    nll: Values,
    *,
    baseline: Baseline = leave_one_out,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 0.02,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return the loss of a network and its agents, for training and for validation.

    It is the mean over rows of `nll`, summed over the steps that count, plus the agents' part:
    `agent_loss`
    with the reward `-nll`. Both parts have this scale, whether `nll` is a loss of each row or of
    each step::

        out = model.rnn(x, seq_lengths=lengths, rngs=key)
        nll = optax.softmax_cross_entropy_with_integer_labels(model.head(out.h), y)
        loss = rl.loss(out, nll)

    Greedy choices, those after `model.eval()`, have no agents' part: the result is the validation
    loss, `network_loss(out, nll)`. LSTM-Jump is greedy in relaxed modes, too, and is then not
    trained.

    `out` is the output of a layer or of a model of this library. `nll` is a loss of each row,
    (*batch,), or of each step, (*batch, time); see `network_loss`. See `agent_loss` for the other
    arguments.
    """
    traces = traces_of(out)
    _check_baseline(traces, baseline)
    total = network_loss(traces, nll, weights=weights)
    _check_coefficients(
        discount, entropy_coef, of_steps=jnp.ndim(nll) == jnp.ndim(traces[0].action)
    )
    is_explored = [trace.mode != "greedy" for trace in traces]
    if any(is_explored):
        explored = list(itertools.compress(traces, is_explored))
        total += agent_loss(
            explored,
            -jnp.asarray(nll),
            baseline=_of_layers(baseline, is_explored),
            discount=discount,
            entropy_coef=entropy_coef,
            weights=weights,
        )
    return total


def traces_of(out: Any) -> tuple[DecisionTrace, ...]:
    """Return the traces in an object with `decisions`, such as a layer's output, or in a sequence,
    or one.
    """
    traces = getattr(out, "decisions", out)
    traces = (traces,) if isinstance(traces, DecisionTrace) else traces
    is_sequence = isinstance(traces, Sequence) and len(traces) > 0
    if not is_sequence or not all(isinstance(trace, DecisionTrace) for trace in traces):
        raise UserError(
            "expected the output of a layer of this library, or its .decisions (DecisionTrace), got "
            f"{described(out)}: for the Decision of a bare cell, call DecisionTrace.of"
        )
    return tuple(traces)


def _check_baseline(traces: Sequence[DecisionTrace], baseline: Baseline) -> None:
    """Raise a `UserError` for names, and for lists that are not the values of critics."""
    if isinstance(baseline, str):
        raise UserError(
            f"expected baseline to be a function (rl.leave_one_out), an array or a number, got {baseline!r}"
        )
    if isinstance(baseline, Sequence):
        _check_values("baseline", traces, baseline)


def _check_values(name: str, traces: Sequence[DecisionTrace], values: Any) -> None:
    """Raise a `UserError` unless the argument called `name` is a list of critics' values, one per
    layer.
    """
    wanted = f"{name} as a list to have V(s(t)) of a critic for each layer, (*batch, time), or None"
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"expected {name} to be a list, got {described(values)}")
    for value in values:
        if value is not None and not jnp.ndim(value):
            raise UserError(
                f"expected {wanted}, got {described(value)} in it: pass numbers as one array"
            )
    if len(values) != len(traces):
        raise UserError(f"expected {wanted}: {len(traces)} entries, got {len(values)}")
    for value, trace in zip(values, traces, strict=True):
        if value is not None and jnp.shape(value) != jnp.shape(trace.action):
            raise UserError(f"expected {wanted}: {jnp.shape(trace.action)}, got {described(value)}")


def _check_coefficients(discount: Any, entropy_coef: Any = 0.0, *, of_steps: bool) -> None:
    """Check numbers that are known: the discount lies in [0, 1], and is for rewards of steps."""
    check_number("discount", discount, "between 0 and 1", lambda known: 0 <= known <= 1)
    check_number("entropy_coef", entropy_coef, "at 0 or above", lambda known: 0 <= known < math.inf)
    if not of_steps and (isinstance(discount, jax.Array) or discount != 1):
        raise UserError(
            "discount is for a reward of each step, (*batch, time), and this one is of each row: leave it out"
        )


def _of_layers(baseline: Baseline, kept: Sequence[bool]) -> Baseline:
    """Return the baseline for the layers where `kept` is True; only critics' values differ by
    layer.
    """
    return list(itertools.compress(baseline, kept)) if isinstance(baseline, Sequence) else baseline


def _batch_major(decisions: Any, **given: Any) -> list[Any]:
    """Return the traces and the arguments of these names with time as their last axis; check
    them.
    """
    traces = traces_of(decisions)
    shape = jnp.shape(traces[0].action)
    time_major = traces[0].time_major
    batch = shape[1:] if time_major else shape[:-1]
    if not batch:
        raise UserError(
            "expected decisions of a batch, (*batch, time), got one sequence: pass x[None]"
        )

    def turn(leaf: Any) -> Array:
        return (
            jnp.moveaxis(leaf, 0, -1)
            if time_major and jnp.ndim(leaf) == len(shape)
            else jnp.asarray(leaf)
        )

    for name, argument in given.items():
        for leaf in jax.tree.leaves(argument):
            if jnp.shape(leaf) not in (batch, shape):
                raise UserError(
                    f"expected {name} to be {batch} or {shape}, as the decisions, got {described(leaf)}"
                )
    weights = given.get("weights")
    known_weights = None if weights is None else known_values(weights)
    if known_weights is not None and not (known_weights >= 0).all():
        raise UserError(f"expected weights to be numbers of at least 0, got {known_weights.min()}")
    return jax.tree.map(turn, [traces, *given.values()])


def _weight(trace: DecisionTrace, weights: Values | None) -> Float[Array, "..."]:
    """Return the weight of each step, 0 where it does not count."""
    shape, ones = jnp.shape(trace.action), jnp.ones_like(trace.log_prob)
    weights = ones if weights is None else weights.astype(wider(weights.dtype, ones.dtype))
    if weights.ndim < len(shape):
        weights = jnp.broadcast_to(weights[..., None], shape)
    return weights if trace.valid is None else jnp.where(trace.valid, weights, 0)


def _returns(
    trace: DecisionTrace, reward: Values, counted: Bool[Array, "..."], discount: float
) -> Values:
    """Return the return of each action of a layer; a reward of a row is credited as it is.

    If a layer above reads in the other direction, an action also changes earlier rewards, and
    G(t) = Σ_u discount^|u - t| r(u).
    """
    reward = reward.astype(
        wider(reward.dtype, trace.log_prob.dtype)
    )  # whole numbers are rewards, too
    if reward.ndim < counted.ndim:
        return reward
    rewards = jnp.where(counted, reward, 0)
    later = _reward_to_go(rewards, discount, reverse=trace.reverse)
    if not trace.noncausal:
        return later
    return later + _reward_to_go(rewards, discount, reverse=not trace.reverse) - rewards


def _reward_to_go(
    rewards: Float[Array, "*batch time"], discount: float, *, reverse: bool = False
) -> Float[Array, "*batch time"]:
    """Return G(t) = Σ_{u ≥ t} discount^(u - t) r(u), the rewards that the action at t can still
    change.

    With `reverse`, for a layer that reads from the end, the sum is over u ≤ t.
    """

    def back(following, reward):
        total = reward + discount * following
        return total, total

    time_major = jnp.moveaxis(rewards, -1, 0)
    nothing = jnp.zeros_like(time_major.sum(axis=0))  # with the sharding of the batch
    _, totals = jax.lax.scan(back, nothing, time_major, reverse=not reverse)
    return jnp.moveaxis(totals, 0, -1)


def _sum(values: Float[Array, "*batch time"], weight: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the mean over rows of the weighted sum over the steps that count; 0 without rows."""
    weighted = weight * jnp.where(weight != 0, values, 0)
    total = weighted.sum(dtype=wider(weighted.dtype, jnp.float32))  # a long sum overflows float16
    rows = jnp.maximum(jnp.asarray(math.prod(values.shape[:-1]), jnp.float32), 1)
    return (total / rows.astype(total.dtype)).astype(weighted.dtype)


def _nothing(traces: Sequence[DecisionTrace]) -> Float[Array, ""]:
    return jnp.zeros((), traces[0].log_prob.dtype)
