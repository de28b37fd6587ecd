"""What a model chose as it read a text; reads one with a language model, and writes one."""

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
    """What a model makes of each token of a text.

    Attributes:
        log_probs: of every token as the next one, in nats, (time, vocabulary).
        skips: the top layer's `connections`, (time,).
        weights: of the top layer; see `distribution`.
    """

    log_probs: Float[Array, "time vocabulary"]
    skips: Int[Array, " time"]
    weights: Float[Array, "time K"] | None


def connections(decision: F.Decision) -> Int[Array, " time"]:
    """Returns how far back the state was whose successor each word made: State(t-k) entered at word t.

    Where a time skip leaves words out, k is the distance to the word read before, from a first word that to
    before the text, and 0 at words that were not read.

    Args:
        decision: of one sequence that was read from its start, each leaf (time,).
    """
    if decision.update is None:
        return decision.action
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
    """Returns how probable each k was to an agent at each step, or how heavy to attention; else None.

    Args:
        cell: of a layer with an agent or attention.
        observation: what its layer observed of one whole sequence, read from the initial state, as
            `SkipLayers` returns it.
        policy: how choices were made.
        reverse: whether the layer reads from the end.
    """
    skip = cell.skip
    if not skip.has_agent:
        return None
    x, before = (leaf[::-1] if reverse else leaf for leaf in observation)
    params, steps = cell.params().skip, jnp.arange(x.shape[0])
    # State(t-1-j) is what was newest j steps ago; before the sequence all K states are the initial one.
    slots = before[jnp.maximum(steps[:, None] - jnp.arange(skip.max_skip)[None], 0)]
    seen = {
        "previous": before,
        "mean": slots.mean(axis=1),
        "slots": slots,
        "stored": F.Window.of_slots(slots),
    }
    mask = None if policy.mask is None else jnp.asarray(policy.mask)
    weights = jnp.exp(skip.log_distribution(params, x, steps, seen[skip.observed], mask))
    if skip.forgets_carried:
        weights = weights.at[0].set(jax.nn.one_hot(0, skip.max_skip, dtype=weights.dtype))
    return weights[::-1] if reverse else weights


def read_tokens(
    model: LanguageModel,
    tokens: Int[Array, " time"],
    key: Key[Array, ""],
    policy: F.Policy = F.Policy("greedy"),  # noqa: B008 (immutable)
) -> TokenReading:
    """Reads a text from the initial state, once.

    Args:
        model: the language model.
        tokens: ids, usually led by `<eos>`: a line begins after it.
        key: for sampled choices.
        policy: how agents choose.
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
    """Samples a continuation.

    Args:
        model: the language model.
        prompt: ids of at least one token, such as `<eos>`.
        num_tokens: how many to sample.
        key: for words and choices.
        temperature: logits are divided by it; below 1 the likely words become likelier.
        policy: how agents choose.

    Returns:
        The tokens that follow the prompt, and k that the top layer's agent chose when it read what stands
        before each, (num_tokens,).
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
