"""Reads a text with a language model, and writes one: probabilities of words, and what the agent chose."""

from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.models import LanguageModel


class TokenReading(NamedTuple):
    """What a model makes of each token of a text.

    Attributes:
        log_probs: of every token as the next one, in nats, (time, vocabulary).
        skips: k that the agent of the top layer chose when it read the token, (time,).
    """

    log_probs: Float[Array, "time vocabulary"]
    skips: Int[Array, " time"]


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
    return TokenReading(jax.nn.log_softmax(output.logits[0]), output.decisions[-1].action[0])


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
