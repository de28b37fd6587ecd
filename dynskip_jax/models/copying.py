"""The part of a language model that copies words of the recent past by the choice of its top layer's skip."""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.nn.cells import Initializer, SkipCell
from dynskip_jax.nn.linear import Linear

Copy = Literal["none", "chosen", "expected"]
_GATE_BIAS = -2.0  # to begin with, little is copied


class CopyCarry(NamedTuple):
    """What a language model that copies hands from one segment to the next.

    Attributes:
        layers: the carry of each layer.
        words: the last K - 1 inputs, (batch, K - 1).
    """

    layers: tuple[F.SkipCarry, ...]
    words: Int[Array, "batch K_less_one"]


class Copier(nnx.Module):
    """Says what is copied, and how willingly: by the word behind the state chosen, or behind each under π.

    The gate is a logistic function of what the softmax sees, of log π of the choice (where there is one gate
    for all choices, of the likeliest one) and of the entropy of π.

    Args:
        features: size of what the softmax sees.
        copy: `expected`: the words behind all K states, by the probability of each. `chosen`: the word that
            followed the state which entered, so that the choice is hard; in training all K are held against
            the word to come, and the loss is the mean over them (`functional.chosen_log_likelihood`), which
            needs no draw. In both the agent has a gradient beside its rewards.
        weight_init: initializer of the gate's weights.
        dtype: in which matrices are multiplied.
        rngs: source of the initial parameters.
    """

    def __init__(
        self, features: int, copy: Copy, *, weight_init: Initializer, dtype: Any = None, rngs: nnx.Rngs
    ):
        if copy not in ("chosen", "expected"):
            raise UserError(f"unknown copy {copy!r}: choose chosen or expected")
        self.copy = copy
        self.gate = Linear(
            features + 2,
            1,
            dtype=dtype,
            kernel_init=weight_init,
            bias_init=nnx.initializers.constant(_GATE_BIAS),
            rngs=rngs,
        )

    def is_hard(self, policy: F.Policy) -> bool:
        """Returns whether one word is copied by a choice, not all in expectation."""
        return self.copy == "chosen" and policy.mode not in F.RELAXATIONS

    def __call__(
        self,
        cell: SkipCell,
        start: F.SkipCarry,
        observation: tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]],
        h: Float[Array, "batch time features"],
        words: Int[Array, "batch time K"],
        policy: F.Policy,
    ) -> F.Copies:
        """Returns what each of the K choices would copy: with a gate of its own where one is made, and with
        one gate for all where their expectation is copied.

        Args:
            cell: of the layer whose skip chooses.
            start: its carry before the segment.
            observation: x(t) and h(t-1) of that layer.
            h: what the softmax sees.
            words: of `functional.followers`.
            policy: how choices are made.
        """
        skip, (x, before) = cell.skip, observation
        first = start.step == 0 if skip.forgets_carried else None
        history = jnp.concatenate([F.oldest_first(start.slots[0], first), before[:, 1:]], axis=1)
        seen = F.observed_in(history, skip.observed, skip.max_skip, x.shape[1])
        steps = start.step[:, None] + jnp.arange(x.shape[1])[None]
        mask = policy.mask
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None]
        log_probs = skip.log_distribution(cell.params().skip, x, steps, seen, mask)
        probs = jnp.exp(log_probs)
        entropy = -jnp.sum(probs * log_probs, axis=-1)
        of_choice = log_probs if self.is_hard(policy) else log_probs.max(axis=-1, keepdims=True)
        # Log π is added afterwards: h takes part once, not K times.
        told = jnp.stack([jnp.zeros_like(entropy), entropy], axis=-1).astype(h.dtype)
        of_step = self.gate(jnp.concatenate([h, told], axis=-1))
        return F.Copies(words, probs, of_step + self.gate.kernel[h.shape[-1], 0] * of_choice)


def no_words(batch_size: int, max_skip: int) -> Int[Array, "batch K_less_one"]:
    """Returns the inputs before the first of each stream."""
    return jnp.full((batch_size, max_skip - 1), F.NO_WORD, jnp.int32)
