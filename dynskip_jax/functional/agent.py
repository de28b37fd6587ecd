"""The agent of Gui et al. (2019), Eq. 1: a distribution over the last K states, and a choice from it."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.relaxation import Relaxation
from dynskip_jax.functional.stored import Window

# Sample a state, take the most probable one, or weigh all of them (a relaxation, see `relaxation.py`).
ActionMode = Literal["sample", "greedy", Relaxation]


class AgentParams(NamedTuple):
    """Weights of the MLP in Eq. 1: one tanh hidden layer between s(t) = h(t-1) ⊕ x(t) and K logits.

    The matrix of the first layer is kept as two blocks, so that the input's part can be computed for all
    steps at once. A content-based (dot-product) agent has the same weights, and its output is a query.

    Attributes:
        w_h: state block of the first layer, (hidden, units).
        w_x: input block of the first layer, (in, units).
        b: bias of the first layer, (units,).
        w_out: output layer, (units, K); of a content-based agent (units, hidden).
        b_out: bias of the K logits, (K,).
    """

    w_h: Float[Array, "hidden units"]
    w_x: Float[Array, "in units"]
    b: Float[Array, " units"]
    w_out: Float[Array, "units out"]
    b_out: Float[Array, " K"]


def project_agent_input(params: AgentParams, x: Float[Array, "*batch in"]) -> Float[Array, "*batch units"]:
    """Return the part of the agent's first layer that depends on the input."""
    units = product(x, params.w_x)
    return units + row(params.b, units)


def agent_logits(
    params: AgentParams,
    units_x: Float[Array, "*batch units"],
    h: Float[Array, "*batch hidden"],
    allowed: Bool[Array, "*batch_or_1 K"] | None = None,
) -> Float[Array, "*batch K"]:
    """Return MLP(s(t)), Eq. 1: unnormalised log-probabilities.

    Args:
        params: the agent's weights.
        units_x: `project_agent_input(params, x)`, (*batch, units).
        h: the state that the agent sees, (*batch, hidden).
        allowed: False for skips that must not be chosen, (*batch, K), or with ones in place of batch sizes.
            At least one skip must be allowed.

    Returns:
        (*batch, K); finite and very negative where not allowed.
    """
    logits = product(jnp.tanh(units_x + product(h, params.w_h)), params.w_out)
    return _where_allowed(logits + row(params.b_out, logits), allowed)


def content_logits(
    params: AgentParams,
    units_x: Float[Array, "*batch units"],
    stored: Window,
    allowed: Bool[Array, "*batch_or_1 K"] | None = None,
    slots: Any = None,
) -> Float[Array, "*batch K"]:
    """Return dot-product logits: q · h(t-k) / √hidden + b_k, with the query q = W_out tanh(W s(t) + b).

    Args:
        params: the agent's weights, with w_out of (units, hidden).
        units_x: `project_agent_input(params, x)`, (*batch, units).
        stored: the last K stored h.
        allowed: see `agent_logits`.
        slots: the slots to compare with, in place of all K; see `Window.compare_at`.
    """
    h = stored.newest
    query = product(jnp.tanh(units_x + product(h, params.w_h)), params.w_out)
    products = stored.compare(query) if slots is None else stored.compare_at(query, slots)
    logits = products / math.sqrt(h.shape[-1])
    return _where_allowed(logits + row(params.b_out, logits), allowed)


def _where_allowed(
    logits: Float[Array, "*batch K"], allowed: Bool[Array, "*batch_or_1 K"] | None
) -> Float[Array, "*batch K"]:
    """Return the logits, very negative where not allowed: the probability there is exactly 0.

    They are finite, and so small in size (-1e9, in float16 -8188) that differences, quotients by a
    temperature and p log p stay finite too: 0 times infinity would make gradients NaN.
    """
    if allowed is None:
        return logits
    return jnp.where(allowed, logits, max(-1e9, float(jnp.finfo(logits.dtype).min) / 8))


def choice_noise(
    keys: Key[Array, "*batch"], steps: Int[Array, "*batch"], max_skip: int, dtype: Any
) -> Float[Array, "*batch K"]:
    """Return the noise of `choose`: standard Gumbel variables, drawn with `fold_in(key, step)`.

    Args:
        keys: one PRNG key per example; `*batch` may contain the time axis.
        steps: number of the step.
        max_skip: K.
        dtype: dtype of the log-probabilities to which the noise is added. The noise is float32 where this is
            narrower, because narrow dtypes have too few values near the ends.
    """
    dtype = jnp.promote_types(dtype, jnp.float32)

    def draw(key: Key[Array, ""], step: Int[Array, ""]) -> Float[Array, " K"]:
        return jax.random.gumbel(jax.random.fold_in(key, step), (max_skip,), dtype)

    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys, steps)


def choose(logits: Float[Array, "*batch K"], noise: Float[Array, "*batch K"] | None) -> Int[Array, "*batch"]:
    """Return a slot in 0..K-1 for each example, chosen from log-probabilities, normalised or not.

    With Gumbel noise the choice is a sample of the categorical distribution (the Gumbel-max trick, as in
    `jax.random.categorical`). Without noise it is the most probable slot.
    """
    scores = logits if noise is None else logits + noise
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def entropy(log_probs: Float[Array, "*batch K"]) -> Float[Array, "*batch"]:
    """Return H = -Σ p log p over the last axis, in nats; an option of probability 0 adds nothing."""
    possible = log_probs > -jnp.inf
    log_probs = jnp.where(possible, log_probs, 0)  # 0 · -inf and its derivative are NaN
    return -jnp.sum(jnp.where(possible, jnp.exp(log_probs), 0) * log_probs, axis=-1)
