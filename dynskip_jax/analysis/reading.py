"""Read and generate text with a language model, and compute the skips and their probabilities."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.models import LanguageModel
from dynskip_jax.nn import SkipCell


class TokenReading(NamedTuple):
    """Predictions and skips of a language model at each token of a text.

    Attributes:
        log_probs: Log-probability of every token as the next one, in nats, (time, vocabulary).
        skips: `connections` of the top layer, (time,).
        weights: `distribution` of the top layer, (time, K); None where it has none.
    """

    log_probs: Float[Array, "time vocabulary"]
    skips: Int[Array, " time"]
    weights: Float[Array, "time K"] | None


def connections(decision: F.Decision, *, reverse: bool = False) -> Int[Array, " time"]:
    """Return k at each word t, such that State(t-k) entered at word t.

    If the layer reads from the end, it is State(t+k).

    If the time skip leaves words out, k is the distance to the last word that was read. At the first word
    that is read, it is the distance to the position before the text. At words that are not read, k is 0.

    Args:
        decision: Decisions of one whole sequence, each leaf (time,).
        reverse: Whether the layer reads from the end.
    """
    if decision.update is None:
        return decision.action
    if reverse:
        return connections(jax.tree.map(lambda leaf: leaf[::-1], decision))[::-1]
    read, steps = decision.update > 0.5, jnp.arange(decision.update.shape[0])
    last = lax.cummax(jnp.where(read, steps, -1))
    before = jnp.concatenate([jnp.array([-1], last.dtype), last[:-1]])
    return jnp.where(read, steps - before, 0)


def distribution(
    cell: SkipCell,
    observation: tuple[Float[Array, "time in"], Float[Array, "time hidden"]],
    policy: F.Policy = F.Policy("greedy"),  # noqa: B008 (immutable)
    *,
    reverse: bool = False,
) -> Float[Array, "time K"] | None:
    """Return the probability (of an agent) or weight (of attention) of each k at each step.

    Args:
        cell: Cell of the layer.
        observation: x(t) and h(t-1) of the layer for one whole sequence, read from the initial state; an
            entry of `observations` of `SkipLayers`, without the batch axis.
        policy: How choices were made.
        reverse: Whether the layer reads from the end.

    Returns:
        (time, K); None if the layer has neither an agent nor attention.
    """
    skip = cell.skip
    if not skip.has_agent:
        return None
    x, before = (leaf[::-1] if reverse else leaf for leaf in observation)
    params, steps = cell.params().skip, jnp.arange(x.shape[0])
    # Slot j is State(t-1-j). Before the sequence, all K states are the initial one.
    slots = before[jnp.maximum(steps[:, None] - jnp.arange(skip.max_skip)[None], 0)]
    seen = {
        "previous": before,
        "mean": slots.mean(axis=1),
        "slots": slots,
        "stored": F.Window.of_slots(slots),
    }
    mask = None if policy.mask is None else jnp.asarray(policy.mask)
    # τ divides the logits of weights; agents that sample choose at τ = 1.
    is_weighted = policy.mode == "soft" or not skip.is_stochastic
    temperature = policy.temperature if is_weighted else 1.0
    weights = jnp.exp(skip.log_distribution(params, x, steps, seen[skip.observed], mask, temperature))
    if skip.forgets_carried:
        weights = weights.at[0].set(jax.nn.one_hot(0, skip.max_skip, dtype=weights.dtype))
    return weights[::-1] if reverse else weights


def read_tokens(
    model: LanguageModel,
    tokens: Int[Array, " time"],
    key: Key[Array, ""],
    policy: F.Policy = F.Policy("greedy"),  # noqa: B008 (immutable)
) -> TokenReading:
    """Read a text once, from the initial state.

    Args:
        model: Language model.
        tokens: Token ids. They usually begin with `<eos>`, which precedes the first token of a line.
        key: PRNG key for sampled choices.
        policy: How agents choose.
    """
    output = model(tokens[None], policy=policy, rngs=key, deterministic=True)
    decision = jax.tree.map(lambda leaf: leaf[0], output.decisions[-1])
    observation = jax.tree.map(lambda leaf: leaf[0], output.observations[-1])
    weights = distribution(model.stack.cells[-1], observation, policy)
    return TokenReading(jax.nn.log_softmax(output.logits[0]), connections(decision), weights)


def generate(
    model: LanguageModel,
    prompt: Int[Array, " time"],
    num_tokens: int,
    key: Key[Array, ""],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    policy: F.Policy = F.Policy("sample"),  # noqa: B008 (immutable)
) -> tuple[Int[Array, " num_tokens"], Int[Array, " num_tokens"]]:
    """Sample a continuation of a prompt.

    Args:
        model: Language model.
        prompt: Ids of at least one token, such as `<eos>`.
        num_tokens: Number of tokens to sample.
        key: PRNG key for tokens and choices.
        temperature: Divisor of the logits. Below 1, likely words become likelier.
        policy: How agents choose.

    Returns:
        The ids of the sampled tokens, and for each of them the k that the top layer chose at the token before
        it; both (num_tokens,).
    """
    carry_key, word_key = jax.random.split(key)
    read = partial(model, policy=policy, deterministic=True, return_carry=True)
    carry, output = read(prompt[None], rngs=carry_key)
    first = output.logits[0, -1], output.decisions[-1].action[0, -1]

    def step(state, key):
        carry, logits, skip = state
        token = jax.random.categorical(key, logits / temperature)
        carry, output = read(token[None, None], initial_carry=carry)
        return (carry, output.logits[0, -1], output.decisions[-1].action[0, -1]), (token, skip)

    _, (tokens, skips) = lax.scan(step, (carry, *first), jax.random.split(word_key, num_tokens))
    return tokens, skips
