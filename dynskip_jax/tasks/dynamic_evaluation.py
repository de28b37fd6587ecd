"""Measure perplexity with dynamic evaluation: parameters adapt to the text (Krause et al. 2018)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dynskip_jax import functional as F
from dynskip_jax.data import Batch
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.task import evaluated

PyTree = Any
Advance = Callable[[float], None]
_STREAMS = 100  # batch size for the gradient statistics, as in Krause et al.


class DynamicEvaluation:
    """An evaluation of trained language models that keep learning from the text they have read.

    A segment is first predicted, then used for an update. So no word changes its own probability. `advance`
    is called after each segment with 1 / (number of segments).

    Args:
        learner: Learner that trained the models; its task is `LanguageModelling`.
        params: Trained parameters, (seeds, ...), from which every evaluation starts.
        keys: Keys for sampled actions, (seeds,).
        policy: How agents choose, each leaf (seeds, ...). By default as in the learner's evaluation.
        num_steps: Number of words in a segment. Parameters are updated after each segment.
    """

    def __init__(
        self,
        learner: Learner,
        params: PyTree,
        keys: Key[Array, " seeds"],
        *,
        policy: F.Policy | None = None,
        num_steps: int = 5,
    ):
        self._learner, self._task, self._keys = learner, learner.task, keys
        self._params, self._num_steps = params, num_steps
        self._policy = learner.policy() if policy is None else policy
        self._add_squares = jax.jit(jax.vmap(self._add_squares_of_one, (0, 0, 0, 0, None)))
        self._follow = jax.jit(jax.vmap(self._follow_one, (0, 0, 0, 0, 0, None, None)))

    def gradient_scale(self, advance: Advance = lambda _: None) -> F.GradientScale:
        """Return the scale of gradients of a segment's mean loss on the training text, (seeds, ...)."""
        streams = max(1, min(_STREAMS, self._task.tokens("train").size // self._num_steps))
        read, carry = self._segments("train", streams)
        squares = jax.tree.map(jnp.zeros_like, self._params)
        for segment in read:
            squares, carry = self._add_squares(squares, carry, self._params, self._policy, segment)
            advance(1 / len(read))
        return jax.jit(jax.vmap(F.gradient_scale))(jax.tree.map(lambda leaf: leaf / len(read), squares))

    def perplexity(
        self,
        split: str,
        scale: F.GradientScale,
        *,
        learning_rate: float,
        decay: float,
        epsilon: float = 2e-5,
        advance: Advance = lambda _: None,
    ) -> Float[np.ndarray, " seeds"]:
        """Return the perplexity of each seed over all tokens of dev or test, read as one stream.

        `scale` is the result of `gradient_scale`; `learning_rate` (η), `decay` (λ) and `epsilon` (ε) are
        arguments of `functional.adapt`.
        """
        read, carry = self._segments(split, 1)
        params, total = self._params, np.zeros(len(self._keys))
        rates = dict(learning_rate=learning_rate, decay=decay, epsilon=epsilon)
        for segment in read:
            params, carry, nll = self._follow(
                params, carry, self._params, scale, self._policy, segment, rates
            )
            total += np.asarray(nll, np.float64)
            advance(1 / len(read))
        with np.errstate(over="ignore"):
            return np.exp(total / self._task.tokens(split).size)

    def _segments(self, split: str, streams: int) -> tuple[list[Batch], PyTree]:
        """Return the segments of a split, and the carry before the first one."""
        start = partial(self._task.initial_carry, rows=streams)
        model = self._learner.model
        carry = jax.vmap(lambda params, key: start(model(params), key=key))(self._params, self._keys)
        return list(self._task.windows(split, streams, self._num_steps)), carry

    def _gradient(self, params, carry, policy, segment: Batch):
        """Return the gradient of a segment's mean loss, and (the next carry, the sum of the loss)."""

        def loss(params):
            read, _ = self._task.read(self._learner.model(params), segment, carry, **evaluated(policy, None))
            total = -jnp.sum(read.log_probs.target, where=segment.mask)
            return total / jnp.maximum(jnp.sum(segment.mask), 1), (read.carry, total)

        return jax.grad(loss, has_aux=True)(params)

    def _add_squares_of_one(self, squares, carry, params, policy, segment: Batch):
        grads, (carry, _) = self._gradient(params, carry, policy, segment)
        return jax.tree.map(lambda s, g: s + g * g, squares, grads), carry

    def _follow_one(self, params, carry, trained, scale, policy, segment: Batch, rates):
        grads, (carry, nll) = self._gradient(params, carry, policy, segment)
        return F.adapt(params, grads, trained, scale, **rates), carry, nll
