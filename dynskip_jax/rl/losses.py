"""Losses that train agents, computed from the decisions of layers.

`loss` is the one to begin with: it trains a network together with its agents. Each loss is a mean
over all batch axes of a sum over steps and layers. It leaves out steps past the end of a
sequence, and takes each layer's direction into account. All arguments have the decisions' layout,
(*batch, time). Rollouts are a leading batch axis, which `functional.rollouts` makes. In packed
rows, returns include rewards of the row's later sequences.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.agent import masked_logit
from dynskip_jax.functional.checks import check_number, known_values
from dynskip_jax.functional.decisions import DecisionTrace
from dynskip_jax.functional.product import wider
from dynskip_jax.rl.baselines import leave_one_out

Values = Num[Array | np.ndarray, "..."]  # (*batch,) or (*batch, time)
# A function of the returns and of what counts, an array, a number, or none.
Baseline = Callable[[Values, Bool[Array, "..."]], Values] | Values | float | None


def reinforce(
    decisions: Any,
    reward: Values,
    *,
    baseline: Baseline = None,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 0.0,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return the loss whose gradient is minus that of the expected reward (REINFORCE, Eq. 5).

    With a reward R for each row, and β = `entropy_coef`, the loss of a layer in one row is

        -Σ_t log π(a_t | s_t) · stop_gradient(R - baseline - β (Σ_t log π(a_t | s_t) + 1)).

    With a reward for each step, the return of step t starts at t, because an action cannot change
    what came before. The expected gradient is the same and its variance is smaller:

        -Σ_t log π(a_t | s_t) · stop_gradient(G_t - baseline_t - β),
        G_t = Σ_{u ≥ t} discount^(u - t) (r_u - β log π(a_u | s_u)).

    A layer that reads from the end is credited with u ≤ t, and a layer below one of the other
    direction with all u. Layers that do not sample, such as attention, contribute nothing. In a
    stack, the sampled entropy of a layer is that of its own choices: how they change the policies
    of layers above is ignored.

    The loss is NaN if a replayed action has probability 0, because a mask forbids it or because it
    is no candidate. A layer refuses what a mask forbids, but it cannot do so for traced actions.

    Args:
        decisions: `out.decisions` of layers or of a model, `out` itself, or those of one layer; of
            sampled or replayed choices.
        reward: Reward of each row, (*batch,), or of each step, (*batch, time). Gradients are
            stopped.
        baseline: What is subtracted from the returns of every layer: an array for each row or step,
            or a function `(returns, counted) -> baseline`, such as `leave_one_out`. It must not
            depend on the action from whose return it is subtracted.
        discount: Discount per step of later rewards, in [0, 1]; only for a reward of each step.
        entropy_coef: β, the weight of the entropy inside the return (1 in the paper).
        weights: Weight of each row or step in the sum; 0 leaves it out of the baseline, too.
    """
    traces, reward, weights = _checked(decisions, reward=reward, weights=weights)
    reward = jax.lax.stop_gradient(reward)
    if not callable(baseline):
        _, baseline = _checked(decisions, baseline=_baseline_of_batch(decisions, baseline))
    _check_coefficients(discount, entropy_coef, of_steps=_has_steps(traces, reward))

    total = _nothing(traces)
    for trace in traces:
        if trace.mode == "none":
            continue
        if trace.mode not in ("sample", "replayed"):
            raise UserError(
                f"{trace.mode} choices have no REINFORCE gradient: call model.train(), or pass "
                'policy=F.Policy("sample") and rngs= to the model; relaxed ones are trained by '
                "its own loss"
            )
        weight = _weight(trace, weights)
        counted = weight != 0
        log_prob = jnp.where(counted, trace.log_prob, 0)

        # G_t of each step, or one R for all steps of a row, minus the baseline.
        returns = _returns(trace, reward, counted, discount)
        advantage = _minus_baseline(returns, baseline, counted)

        # The derivative of the sampled entropy adds -β (Σ log π + 1). The sum begins at the action
        # where returns differ between steps, and is over the row where one return is for all.
        if isinstance(entropy_coef, jax.Array) or entropy_coef:
            if advantage.shape[-1] == 1:
                later = log_prob.sum(axis=-1, keepdims=True)
            else:
                later = _reward_to_go(log_prob, discount, reverse=trace.reverse)
            advantage = advantage - entropy_coef * (later + 1)

        # The product with an infinite advantage past the end would be NaN.
        advantage = jax.lax.stop_gradient(jnp.where(counted, advantage, 0))
        of_layer = _sum(log_prob * advantage, weight)
        if trace.mode == "replayed":
            of_layer = of_layer * _nan_if_impossible(log_prob)
        total = total - of_layer
    return total


def entropy(decisions: Any, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return the entropy of the policies, Σ_t H(π(· | s_t)), differentiated directly.

    It has no sampling noise, but ignores how an action changes later entropies, and those of layers
    above. Subtract it from the loss: `- beta * rl.entropy(out.decisions)`. Arguments are those of
    `reinforce`.
    """
    traces, weights = _checked(decisions, weights=weights)
    # Layers without a policy, such as those of `F.Fixed`, have no entropy to raise.
    total = _nothing(traces)
    for trace in traces:
        if trace.mode != "none":
            total = total + _sum(trace.entropy, _weight(trace, weights))
    return total


def tokens_read(decisions: Any, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return the number of tokens read by layers that learn by gradient which ones to read.

    Add it to the loss: `+ cost * rl.tokens_read(out.decisions)`, with λ of Skip RNN (Campos et al.
    2018, Eq. 8) as cost. Arguments are those of `reinforce`.
    """
    traces, weights = _checked(decisions, weights=weights)
    total = _nothing(traces)
    for trace in traces:
        if trace.update_is_differentiable:
            total = total + _sum(trace.update, _weight(trace, weights))
    return total


def network_loss(decisions: Any, nll: Values, *, weights: Values | None = None) -> Float[Array, ""]:
    """Return J_1, the mean over rows of `nll`, summed over the steps that count (Eq. 3).

    Arguments are those of `reinforce`; an `nll` of each row has no use for weights of steps.
    """
    traces, nll, weights = _checked(decisions, nll=nll, weights=weights)
    # Whole numbers are losses, too.
    nll = nll.astype(wider(nll.dtype, traces[0].log_prob.dtype))
    if _has_steps(traces, nll):
        return _sum(nll, _weight(traces[0], weights))

    # A loss of each row is the sum over a time axis with one step.
    if weights is None:
        weights = jnp.ones_like(nll)
    if weights.ndim > nll.ndim:
        raise UserError(
            f"expected weights of each row, {nll.shape}, as nll has, got {described(weights)}: "
            "pass an nll of each step, or the weights of rows"
        )
    return _sum(nll[..., None], weights[..., None])


def agent_loss(
    out: Any,
    reward: Values,
    *,
    baseline: Baseline = leave_one_out,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 0.0,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return the agents' part of `loss`, for sampled and for relaxed choices, from any reward.

    For sampled choices it is `reinforce` with a leave-one-out baseline, over rollouts or else over
    the batch, minus `entropy_coef` times the exact entropy of every step. This bonus keeps agents
    exploring, and is a sum over steps: with one reward for a long row even 0.02 outweighs it.
    Relaxed choices add nothing: the loss of the network trains them, and they weigh all states, so
    nothing is left to explore. Arguments are those of `reinforce`.

    With a reward of each step it is a sum over steps: add it to a loss that is one, too, such as
    `network_loss(out, nll)`. In comparison with it, `nll.mean()` is divided by the number of steps,
    and it counts padding.
    """
    traces = traces_of(out)
    _check_coefficients(discount, entropy_coef, of_steps=_has_steps(traces, reward))
    chosen = [trace for trace in traces if trace.mode in ("sample", "replayed", "greedy")]
    if not chosen:
        return _nothing(traces)
    of_choices = reinforce(chosen, reward, baseline=baseline, discount=discount, weights=weights)
    return of_choices - entropy_coef * entropy(chosen, weights=weights)


def loss(
    out: Any,
    nll: Values,
    *,
    baseline: Baseline = leave_one_out,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 0.0,
    weights: Values | None = None,
) -> Float[Array, ""]:
    """Return the loss of a network and its agents, for training and for validation.

    It is the mean over rows of `nll`, summed over the steps that count, plus the agents' part:
    `agent_loss` with the reward `-nll`. Both parts have this scale, whether `nll` is a loss of each
    row or of each step::

        out = model.rnn(x, seq_lengths=lengths, rngs=key)
        nll = optax.softmax_cross_entropy_with_integer_labels(model.head(out.h), y)
        loss = rl.loss(out, nll)

    Greedy choices, those after `model.eval()`, have no agents' part: the result is the validation
    loss, `network_loss(out, nll)`. LSTM-Jump is greedy in relaxed modes, too, and is then not
    trained. Eq. 3 to 6 of Gui et al. (2019) as printed are `network_loss(out, nll) + reinforce(out,
    -nll, entropy_coef=1.0)`, without a baseline.

    `nll` is a loss of each row, (*batch,), or of each step, (*batch, time). See `agent_loss` for
    the other arguments.
    """
    traces = traces_of(out)
    total = network_loss(traces, nll, weights=weights)

    # Greedy choices explore nothing, so there is nothing from which their agents could learn.
    explored = [trace for trace in traces if trace.mode != "greedy"]
    if explored:
        total += agent_loss(
            explored,
            -jnp.asarray(nll),
            baseline=baseline,
            discount=discount,
            entropy_coef=entropy_coef,
            weights=weights,
        )
    return total


def traces_of(out: Any) -> tuple[DecisionTrace, ...]:
    """Return the traces of a layer's output, of its `decisions`, of a sequence, or of one trace."""
    traces = getattr(out, "decisions", out)
    if isinstance(traces, DecisionTrace):
        traces = (traces,)
    is_sequence = isinstance(traces, Sequence) and len(traces) > 0
    if not is_sequence or not all(isinstance(trace, DecisionTrace) for trace in traces):
        raise UserError(
            "expected the output of a layer of this library, or its .decisions (DecisionTrace), "
            f"got {described(out)}: for the Decision of a bare cell, call DecisionTrace.of"
        )
    return tuple(traces)


def _check_coefficients(discount: Any, entropy_coef: Any = 0.0, *, of_steps: bool) -> None:
    """Check numbers that are known: the discount lies in [0, 1], and is for rewards of steps."""
    check_number("discount", discount, "between 0 and 1", lambda known: 0 <= known <= 1)
    check_number("entropy_coef", entropy_coef, "at 0 or above", lambda known: 0 <= known < math.inf)
    if not of_steps and (isinstance(discount, jax.Array) or discount != 1):
        raise UserError(
            "discount is for a reward of each step, (*batch, time), and this one is of each row: "
            "leave it out"
        )


def _baseline_of_batch(decisions: Any, baseline: Values | float | None) -> Values | None:
    """Return a baseline with the axes of the batch at least, without a gradient.

    A number is that of all rows, and an array without the axis of rollouts is shared by them.
    """
    if baseline is None:
        return None
    if not isinstance(baseline, int | float) and not hasattr(baseline, "dtype"):
        raise UserError(
            "expected baseline to be a function (rl.leave_one_out), an array or a number, got "
            f"{described(baseline)}: call reinforce for each layer, if each has another"
        )
    batch = jnp.shape(traces_of(decisions)[0].action)[:-1]
    if jnp.ndim(baseline) < len(batch):
        baseline = jnp.broadcast_to(baseline, batch)
    return jax.lax.stop_gradient(baseline)


def _minus_baseline(
    returns: Values, baseline: Baseline, counted: Bool[Array, "*batch time"]
) -> Float[Array, "*batch time_or_1"]:
    """Return the returns minus their baseline; if both are those of rows, for one step."""
    of_steps = returns.ndim == counted.ndim
    if callable(baseline):
        in_group = counted
        if not of_steps:
            in_group = counted.any(axis=-1)
        baseline = baseline(returns, in_group)
    if not of_steps:
        returns = returns[..., None]
    if baseline is None:
        return returns
    if jnp.ndim(baseline) < counted.ndim:
        baseline = jnp.asarray(baseline)[..., None]
    return returns - baseline


def _has_steps(traces: Sequence[DecisionTrace], array: Values) -> bool:
    """Return whether an array has a value for each step, and not for each row."""
    return jnp.ndim(array) == jnp.ndim(traces[0].action)


def _checked(decisions: Any, **given: Any) -> list[Any]:
    """Check the traces and these arguments, and return them as JAX's arrays."""
    # Layers of one call have the same axes.
    traces = traces_of(decisions)
    shape = jnp.shape(traces[0].action)
    batch = shape[:-1]
    if not batch:
        raise UserError(
            "expected decisions of a batch, (*batch, time), got one sequence: pass x[None]"
        )

    for name, argument in given.items():
        if argument is None:
            continue
        if jnp.shape(argument) not in (batch, shape):
            raise UserError(
                f"expected {name} to be {batch} or {shape}, as the decisions, "
                f"got {described(argument)}"
            )
        # A mask is a weight, but no loss and no reward.
        dtype = jnp.result_type(argument)
        is_mask = name == "weights" and dtype == jnp.bool_
        is_real = any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer))
        if not is_mask and not is_real:
            raise UserError(f"expected {name} to be real numbers, got {described(argument)}")
    if given.get("weights") is not None:
        weights = known_values(given["weights"])
        if weights is not None and not (weights >= 0).all():
            raise UserError(f"expected weights to be numbers of at least 0, got {weights.min()}")

    return jax.tree.map(jnp.asarray, [traces, *given.values()])


def _weight(trace: DecisionTrace, weights: Values | None) -> Float[Array, "*batch time"]:
    """Return the weight of each step, 0 where it does not count."""
    ones = jnp.ones_like(trace.log_prob)
    if weights is None:
        weights = ones
    else:
        weights = weights.astype(wider(weights.dtype, ones.dtype))
    if weights.ndim < ones.ndim:  # all steps of a row have its weight
        weights = jnp.broadcast_to(weights[..., None], ones.shape)
    if trace.valid is None:
        return weights
    return jnp.where(trace.valid, weights, 0)


def _nan_if_impossible(log_prob: Float[Array, "*batch time"]) -> Float[Array, ""]:
    """Return NaN if any choice has probability 0, and 1 otherwise: a factor of the loss."""
    # Logits of forbidden choices are finite, so log π is -1e9 and would dominate every loss. As a
    # factor of the whole sum, NaN is also in the gradient of all other choices: a log π of -1e9
    # may be a constant without a gradient.
    is_impossible = log_prob < masked_logit(log_prob.dtype) / 2
    return jnp.where(is_impossible.any(), jnp.nan, 1).astype(log_prob.dtype)


def _returns(
    trace: DecisionTrace, reward: Values, counted: Bool[Array, "*batch time"], discount: float
) -> Values:
    """Return the return of each action of a layer; a reward of a row is credited as it is.

    If a layer above reads in the other direction, an action also changes earlier rewards, and
    G(t) = Σ_u discount^|u - t| r(u).
    """
    # Whole numbers are rewards, too.
    reward = reward.astype(wider(reward.dtype, trace.log_prob.dtype))
    if reward.ndim < counted.ndim:
        return reward
    rewards = jnp.where(counted, reward, 0)
    later = _reward_to_go(rewards, discount, reverse=trace.reverse)
    if not trace.noncausal:
        return later
    earlier = _reward_to_go(rewards, discount, reverse=not trace.reverse)
    return later + earlier - rewards  # both sums contain r(t)


def _reward_to_go(
    rewards: Float[Array, "*batch time"], discount: float, *, reverse: bool = False
) -> Float[Array, "*batch time"]:
    """Return G(t) = Σ_{u ≥ t} discount^(u - t) r(u), the rewards that an action at t can change.

    With `reverse`, for a layer that reads from the end, the sum is over u ≤ t.
    """

    # Time is the leading axis of a scan. It runs against the direction in which the layer reads.
    def back(following, reward):
        total = reward + discount * following
        return total, total

    by_time = jnp.moveaxis(rewards, -1, 0)
    # The sum has the sharding of the batch, which the loop's carry needs on a mesh.
    nothing = jnp.zeros_like(by_time.sum(axis=0))
    _, totals = jax.lax.scan(back, nothing, by_time, reverse=not reverse)
    return jnp.moveaxis(totals, 0, -1)


def _sum(values: Float[Array, "*batch time"], weight: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the mean over rows of the weighted sum over the steps that count; 0 without rows."""
    # What does not count may be infinite, so it is replaced before it is multiplied by 0.
    weighted = weight * jnp.where(weight != 0, values, 0)
    # A long sum overflows float16.
    total = weighted.sum(dtype=wider(weighted.dtype, jnp.float32))
    rows = jnp.maximum(jnp.asarray(math.prod(values.shape[:-1]), jnp.float32), 1)
    return (total / rows.astype(total.dtype)).astype(weighted.dtype)


def _nothing(traces: Sequence[DecisionTrace]) -> Float[Array, ""]:
    """Return a sum of no terms, in the dtype of the losses."""
    return jnp.zeros((), traces[0].log_prob.dtype)
