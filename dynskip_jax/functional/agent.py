"""The agent of Gui et al. (2019), Eq. 1: a distribution over the last K states, and a choice from it."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.relaxation import Relaxation
from dynskip_jax.functional.stored import Window

# How the next state is chosen: one is drawn, or the most probable one is taken; or none is chosen, and a
# relaxation weighs all of them (see `relaxation.py`).
ActionMode = Literal["sample", "greedy", Relaxation]

# The logit of what must not be chosen. Its probability is 0 in bfloat16 and whatever is wider, and p log p,
# times any weight that a loss may give it, stays far from overflow: 0 times infinity would make gradients not
# a number. (float16 does not reach so far.)
NOT_ALLOWED = -1e9


class AgentParams(NamedTuple):
    """Weights of the MLP in Eq. 1: one tanh hidden layer between s(t) = h(t-1) ⊕ x(t) and K logits.

    The first layer acts on a concatenation, so its matrix is kept as two blocks: the input's share of it
    can then be computed for all steps at once.

    An agent that chooses by content has the same weights, but its output layer makes a query.

    Attributes:
        w_h: state block of the first layer, (hidden, units).
        w_x: input block of the first layer, (in, units).
        b: bias of the first layer, (units,).
        w_out: output layer, (units, K); by content (units, hidden).
        b_out: bias of the K logits, (K,).
    """

    w_h: Float[Array, "hidden units"]
    w_x: Float[Array, "in units"]
    b: Float[Array, " units"]
    w_out: Float[Array, "units out"]
    b_out: Float[Array, " K"]


def project_agent_input(params: AgentParams, x: Float[Array, "*batch in"]) -> Float[Array, "*batch units"]:
    """Returns the input's share of the agent's first layer, which needs no state."""
    units = product(x, params.w_x)
    return units + row(params.b, units)


def agent_logits(
    params: AgentParams,
    units_x: Float[Array, "*batch units"],
    h: Float[Array, "*batch hidden"],
    allowed: Bool[Array, "*batch_or_1 K"] | None = None,
) -> Float[Array, "*batch K"]:
    """MLP(s(t)), Eq. 1: unnormalised log-probabilities.

    Args:
        params: the agent's weights.
        units_x: `project_agent_input(params, x)`, (*batch, units).
        h: the state the agent looks at, (*batch, hidden).
        allowed: False for skips that must not be chosen; (*batch, K), or ones in place of batch sizes.
            At least one skip must be allowed.

    Returns:
        (*batch, K); very negative, but finite, where not allowed, so that p log p and its gradient are 0
        there instead of NaN.
    """
    logits = product(jnp.tanh(units_x + product(h, params.w_h)), params.w_out)
    return _where_allowed(logits + row(params.b_out, logits), allowed)


def content_logits(
    params: AgentParams,
    units_x: Float[Array, "*batch units"],
    stored: Window,
    allowed: Bool[Array, "*batch_or_1 K"] | None = None,
) -> Float[Array, "*batch K"]:
    """Logits by content: q · h(t-k) / √hidden + b_k, with the query q = W_out tanh(W s(t) + b).

    Args:
        params: the agent's weights; w_out is (units, hidden).
        units_x: `project_agent_input(params, x)`, (*batch, units).
        stored: the last K stored h.
        allowed: as in `agent_logits`.
    """
    h = stored.newest
    query = product(jnp.tanh(units_x + product(h, params.w_h)), params.w_out)
    logits = stored.compare(query) / math.sqrt(h.shape[-1])
    return _where_allowed(logits + row(params.b_out, logits), allowed)


def _where_allowed(
    logits: Float[Array, "*batch K"], allowed: Bool[Array, "*batch_or_1 K"] | None
) -> Float[Array, "*batch K"]:
    return logits if allowed is None else jnp.where(allowed, logits, NOT_ALLOWED)


def choice_noise(
    keys: Key[Array, "*batch"], steps: Int[Array, "*batch"], max_skip: int, dtype: Any
) -> Float[Array, "*batch K"]:
    """The noise of `choose`: standard Gumbel variables, drawn with `fold_in(own key, own step)`.

    Args:
        keys: one PRNG key per example; `*batch` may contain the time axis.
        steps: the number of the step that each draws for.
        max_skip: K.
        dtype: of the log-probabilities to which the noise is added. In less than float32 there are too few
            values near the ends: it is drawn, and returned, in float32 then.
    """
    dtype = jnp.promote_types(dtype, jnp.float32)

    def draw(key: Key[Array, ""], step: Int[Array, ""]) -> Float[Array, " K"]:
        return jax.random.gumbel(jax.random.fold_in(key, step), (max_skip,), dtype)

    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys, steps)


def choose(logits: Float[Array, "*batch K"], noise: Float[Array, "*batch K"] | None) -> Int[Array, "*batch"]:
    """Chooses a slot in 0..K-1 for each example, from log-probabilities, normalised or not.

    With Gumbel noise the largest sum is a sample of the categorical distribution, as in
    `jax.random.categorical` (Gumbel-max); without noise the choice is the most probable one.
    """
    scores = logits if noise is None else logits + noise
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def entropy(log_probs: Float[Array, "*batch K"]) -> Float[Array, "*batch"]:
    """Return H = -Σ p log p over the last axis, in nats; an option of probability 0 adds nothing."""
    possible = log_probs > -jnp.inf
    log_probs = jnp.where(possible, log_probs, 0)  # 0 · -inf is not a number, and neither is its slope
    return -jnp.sum(jnp.where(possible, jnp.exp(log_probs), 0) * log_probs, axis=-1)
