"""Copy recent words in a language model; the pointer is the choice of its top layer's time skip."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import entropy as entropy_of
from dynskip_jax.functional.relaxation import policy_temperature
from dynskip_jax.nn.base import Linear
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.initializers import Initializer

Copy = Literal["none", "chosen", "expected"]
_GATE_BIAS = -2.0  # initially, copying has a low probability


class CopyCarry(NamedTuple):
    """Carry of a language model that copies words, from one segment to the next."""

    layers: tuple[F.SkipCarry, ...]
    words: Int[Array, "batch K_less_one"]  # ids of the last K - 1 inputs


class Copier(nnx.Module):
    """Gate and pointer for copying the words that followed the K states of a time skip.

    The gate is a logistic function of the inputs of the softmax, of the entropy of π, and of log π
    of a choice. With a hard choice each k has its own gate. Otherwise there is one gate for all k,
    which uses log π of the most probable one.

    Args:
        copy: `expected` copies the words that followed all K states, weighted by the probability π
            of each. `chosen` copies only the word that followed the chosen state. In training,
            `chosen` uses the expected log-likelihood over all K choices, so nothing is sampled for
            the loss. The gate learns from the most probable choice, which evaluation copies
            (`functional.chosen_log_likelihood_with_greedy_gates`). In both cases the agent receives
            a gradient in addition to its rewards.
    """

    def __init__(
        self,
        features: int,
        copy: Copy,
        *,
        weight_init: Initializer,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if copy not in ("chosen", "expected"):
            raise UserError(f"unknown copy {copy!r}: choose chosen or expected")
        self.copy = copy
        # The two features beside h are log π of a choice and the entropy of π.
        init = dict(kernel_init=weight_init, bias_init=nnx.initializers.constant(_GATE_BIAS))
        self.gate = Linear(features + 2, 1, dtype=dtype, **init, rngs=rngs)

    def is_hard(self, policy: F.Policy) -> bool:
        """Return whether one chosen word is copied, instead of all words in expectation."""
        return self.copy == "chosen" and policy.mode not in F.RELAXATIONS

    def __call__(
        self,
        cell: SkipCell,
        start: F.SkipCarry,
        observation: tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]],
        h: Float[Array, "batch time features"],
        words: Int[Array, "batch time K"],
        steps: Int[Array, "batch time"],
        policy: F.Policy,
        restarts: bool = False,
    ) -> F.Copies:
        """Return the words, probabilities and gates of the K choices at each step.

        `gates` has one entry per choice if `is_hard(policy)`, else one for all choices. The skip of
        `cell` chooses; `start` is its carry before the segment, and `observation` its x(t) and
        h(t-1). `h` are the inputs of the softmax, and `words` come from `functional.followers`.
        `steps` are the numbers of steps before each step since its document began, which may be
        inside the segment if `restarts`.
        """
        log_probs = self._log_distribution(cell, start, observation, steps, policy, restarts)
        probs = jnp.exp(log_probs)
        if self.is_hard(policy):
            # The gate learns how often the choice is right, not to make the choice look right.
            log_probs = jax.lax.stop_gradient(log_probs)
        entropy = entropy_of(log_probs)

        # Each choice has its own gate if one is copied; else the most probable one decides.
        of_choice = log_probs
        if not self.is_hard(policy):
            of_choice = log_probs.max(axis=-1, keepdims=True)

        # log π is added after the product, so that h is multiplied once and not K times.
        of_policy = jnp.stack([jnp.zeros_like(entropy), entropy], axis=-1).astype(h.dtype)
        of_step = self.gate(jnp.concatenate([h, of_policy], axis=-1))
        gates = of_step + self.gate.kernel[h.shape[-1], 0] * of_choice
        return F.Copies(words, probs, gates)

    def _log_distribution(
        self,
        cell: SkipCell,
        start: F.SkipCarry,
        observation: tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]],
        steps: Int[Array, "batch time"],
        policy: F.Policy,
        restarts: bool,
    ) -> Float[Array, "batch time K"]:
        """Return log π of all K states at each step; what choices observe gets a gradient."""
        skip = cell.skip
        x, before = observation  # x(t), and h(t-1)

        # The states that the carry holds, and then those of the segment; h(t-1) of its first step
        # is already among the former.
        is_first = None
        if skip.forgets_carried:
            is_first = start.step == 0
        carried = F.oldest_first(start.slots[0], is_first)
        history = jnp.concatenate([carried, before[:, 1:]], axis=1)

        # States of earlier documents are still in the history. The step before which a document
        # began has the initial state there.
        alive = None
        initial = None
        if restarts:
            alive = steps
            initial = cell.initial_state((x.shape[0],)).h
        seen = F.observations_in(
            history, skip.observation_kind, skip.max_skip, x.shape[1], alive, initial
        )
        also_seen = {}
        if skip.observes_inputs:
            also_seen["followed"] = F.followed_in(start.recent_inputs, x, alive)

        mask = policy.mask
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None]  # the same at all steps
        temperature = policy_temperature(skip.mode_of(policy.mode), policy.temperature)
        params = cell.params().skip
        return skip.log_distribution(params, x, steps, seen, mask, temperature, **also_seen)
