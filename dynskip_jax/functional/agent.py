"""The agent of Gui et al. (2019), Eq. 1: a distribution over the last K states, and a choice."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.functional.memory import Memory
from dynskip_jax.functional.product import affine, product, row, wider
from dynskip_jax.functional.relaxation import Relaxation
from dynskip_jax.functional.serialization import register_for_export

# Sample a state, take the most probable one, or compute weights for all of them (see
# `relaxation.py`).
ActionMode = Literal["sample", "greedy", Relaxation]


@register_for_export
class AgentParams(NamedTuple):
    """Weights of the MLP in Eq. 1: one tanh hidden layer between s(t) = h(t-1) ⊕ x(t) and K logits.

    The first layer's matrix is stored as two blocks, so that the part that depends on the input can
    be computed for all steps at once. An agent that compares states has the same weights, but its
    output layer computes a query as well (`both`), or instead (`content`).

    Attributes:
        w_h: State block of the first layer's matrix, (hidden, units).
        w_x: Input block of the first layer's matrix, (in, units).
        w_out: Matrix of the output layer, (units, out). Its columns are hidden for the query, if
            the agent compares states, then in, if it also compares the inputs that followed them,
            and then K for the logits of Eq. 1, except for a `content` agent.
    """

    w_h: Float[Array, "hidden units"]
    w_x: Float[Array, "in units"]
    b: Float[Array, " units"]
    w_out: Float[Array, "units out"]
    b_out: Float[Array, " K"]


def project_agent_input(
    params: AgentParams, x: Float[Array, "*batch in"]
) -> Float[Array, "*batch units"]:
    """Return the part of the agent's first layer that depends on the input."""
    return affine(x, params.w_x, params.b)


def agent_logits(
    params: AgentParams,
    units_x: Float[Array, "*batch units"],
    h: Float[Array, "*batch hidden"],
    allowed: Bool[Array, "*batch_or_1 K"] | None = None,
) -> Float[Array, "*batch K"]:
    """Return the logits MLP(s(t)) of Eq. 1, unnormalised log-probabilities.

    `units_x` is the result of `project_agent_input(params, x)`. Logits are finite and very negative
    where `allowed` is False; at least one skip must be allowed.
    """
    units = jnp.tanh(units_x + product(h, params.w_h))
    return where_allowed(affine(units, params.w_out, params.b_out), allowed)


def content_logits(
    params: AgentParams,
    units_x: Float[Array, "*batch units"],
    memory: Memory,
    slots: Array | np.ndarray | None = None,
    followed: Memory | None = None,
) -> Float[Array, "*batch K"]:
    """Return dot-product logits: q · h(t-k) / √hidden + b_k.

    The query is q = W_out tanh(W s(t) + b). `memory` has the last K h. The query meets those in
    `slots` (see `Memory.compare_at`), or all if it is None. With `followed`, the inputs x(t-k+1)
    that followed these states, the query has a second part, and q_x · x(t-k+1) / √in is added. If
    W_out has K more columns, they give the logits of Eq. 1, which are added too.
    """
    # What the output layer computes at each step, side by side: q, q_x and the logits of Eq. 1.
    h = memory.previous
    output = product(jnp.tanh(units_x + product(h, params.w_h)), params.w_out)
    end = h.shape[-1]
    logits = _similarity(output[..., :end], memory, slots)
    if followed is not None:
        begin = end
        end += params.w_x.shape[0]
        logits = logits + _similarity(output[..., begin:end], followed, slots)
    if output.shape[-1] > end:
        logits = logits + output[..., end:]
    return logits + row(params.b_out, logits)


def _similarity(
    query: Float[Array, "*batch features"], keys: Memory, slots: Array | np.ndarray | None
) -> Float[Array, "*batch n"]:
    """Return scaled dot products of the query with the keys in `slots`; None stands for all."""
    if slots is None:
        products = keys.compare(query)
    else:
        products = keys.compare_at(query, slots)
    return products / math.sqrt(query.shape[-1])


def where_allowed(
    logits: Float[Array, "*batch K"], allowed: Bool[Array, "*batch_or_1 K"] | None
) -> Float[Array, "*batch K"]:
    """Return the logits, with a large negative value where `allowed` is False.

    The probability there is 0. The value is -1e9, or -8188 in float16, so that differences and
    p log p stay finite. Infinities would make gradients NaN (0 times infinity).
    """
    if allowed is None:
        return logits
    return jnp.where(allowed, logits, masked_logit(logits.dtype))


def masked_logit(dtype: Any) -> float:
    """Return the logit of a skip that must not be chosen; see `where_allowed`."""
    return max(-1e9, float(jnp.finfo(dtype).min) / 8)


def choice_noise(
    keys: Key[Array, "*batch"], steps: Int[Array, "*batch"], max_skip: int, dtype: Any
) -> Float[Array, "*batch K"]:
    """Return the noise for `choose`: standard Gumbel variables, drawn with `fold_in(key, step)`.

    It is float32 for a narrower `dtype`, the log-probabilities', because narrow dtypes have too few
    values in the tails.
    """
    dtype = wider(dtype, jnp.float32)

    def draw(key: Key[Array, ""], step: Int[Array, ""]) -> Float[Array, " K"]:
        return jax.random.gumbel(jax.random.fold_in(key, step), (max_skip,), dtype)

    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys, steps)


def choose(
    logits: Float[Array, "*batch K"], noise: Float[Array, "*batch K"] | None
) -> Int[Array, "*batch"]:
    """Return the chosen slot in 0..K-1 for each example, int32.

    With Gumbel noise the choice is a sample from the categorical distribution (the Gumbel-max
    trick, as in `jax.random.categorical`). Without noise it is the most probable slot. Logits need
    not be normalised.
    """
    scores = logits
    if noise is not None:
        scores = logits.astype(noise.dtype) + noise
    # The first of the largest: XLA:CPU takes ten times as long for an argmax over 1,024 scores.
    is_largest = scores == jnp.max(scores, axis=-1, keepdims=True)
    slots = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    last = scores.shape[-1] - 1
    return jnp.min(jnp.where(is_largest, slots, last), axis=-1)


def entropy(log_probs: Float[Array, "*batch K"]) -> Float[Array, "*batch"]:
    """Return H = -Σ p log p over the last axis, in nats; options of probability 0 contribute 0."""
    possible = log_probs > -jnp.inf
    log_probs = jnp.where(possible, log_probs, 0)  # 0 · -inf and its derivative are NaN
    return -jnp.sum(jnp.where(possible, jnp.exp(log_probs), 0) * log_probs, axis=-1)
