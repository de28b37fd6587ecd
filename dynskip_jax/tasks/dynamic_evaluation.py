"""Measure perplexity with dynamic evaluation: parameters adapt to the text (Krause et al. 2018)."""

import dataclasses
from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.task import evaluated

Advance = Callable[[float], None]
# Of Krause et al.: the batch size for the gradient statistics, and what is added to their root.
_STREAMS = 100
_EPSILON = 2e-5


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicEvaluation:
    """An evaluation of trained language models that keep learning from the text they have read.

    A segment is first predicted, then used for an update. So no word changes its own probability.
    `advance` is called after each segment with 1 / (number of segments).
    """

    learner: Learner  # that trained the models; its task is `LanguageModelling`
    params: PyTree  # trained parameters, (seeds, ...), from which every evaluation starts
    keys: Key[Array, " seeds"]  # for sampled actions
    policy: F.Policy  # how agents choose, each leaf (seeds, ...)
    num_steps: int = 5  # words in a segment

    def gradient_scale(self, advance: Advance = lambda _: None) -> F.GradientScale:
        """Return the scale of gradients of a segment's mean loss on train, (seeds, ...)."""
        streams = max(1, min(_STREAMS, self.learner.task.tokens("train").size // self.num_steps))
        read, carry = self._segments("train", streams)
        squares = jax.tree.map(jnp.zeros_like, self.params)
        add = jax.jit(jax.vmap(self._add_squares, (0, 0, 0, 0, None)))
        for segment in read:
            squares, carry = add(squares, carry, self.params, self.policy, segment)
            advance(1 / len(read))
        return jax.jit(jax.vmap(F.gradient_scale))(
            jax.tree.map(lambda leaf: leaf / len(read), squares)
        )

    def perplexity(
        self,
        split: str,
        scale: F.GradientScale,
        *,
        learning_rate: float,
        decay: float,
        advance: Advance = lambda _: None,
    ) -> Float[np.ndarray, " seeds"]:
        """Return the perplexity of each seed over all tokens of dev or test, read as one stream.

        `scale` is the result of `gradient_scale`; the rates (η, λ) are arguments of
        `functional.adapt`.
        """
        read, carry = self._segments(split, 1)
        params = self.params
        total = np.zeros(len(self.keys))
        rates = dict(learning_rate=learning_rate, decay=decay, epsilon=_EPSILON)
        for segment in read:
            given = self.params, scale, self.policy, segment, rates
            params, carry, nll = self._follow(params, carry, *given)
            total += np.asarray(nll, np.float64)
            advance(1 / len(read))
        with np.errstate(over="ignore"):
            return np.exp(total / self.learner.task.tokens(split).size)

    def _segments(self, split: str, streams: int) -> tuple[list[Batch], PyTree]:
        """Return the segments of a split, and the carry before the first one."""
        task = self.learner.task
        model = self.learner.model
        start = jax.vmap(lambda params, key: task.initial_carry(model(params), streams, key))
        return list(task.windows(split, streams, self.num_steps)), start(self.params, self.keys)

    def _gradient(self, params, carry, policy, segment: Batch):
        """Return the gradient of a segment's mean loss, and (the next carry, its sum)."""
        learner = self.learner
        how = evaluated(policy, None)

        def loss(params):
            read, _ = learner.task.read(learner.model(params), segment, carry, **how)
            total = -jnp.sum(read.log_probs.target, where=segment.mask)
            return total / jnp.maximum(jnp.sum(segment.mask), 1), (read.carry, total)

        return jax.grad(loss, has_aux=True)(params)

    def _add_squares(self, squares, carry, params, policy, segment: Batch):
        grads, (carry, _) = self._gradient(params, carry, policy, segment)
        return jax.tree.map(lambda s, g: s + g * g, squares, grads), carry

    @cached_property
    def _follow(self) -> Callable:
        return jax.jit(jax.vmap(self._follow_one, (0, 0, 0, 0, 0, None, None)))

    def _follow_one(self, params, carry, trained, scale, policy, segment: Batch, rates):
        grads, (carry, nll) = self._gradient(params, carry, policy, segment)
        return F.adapt(params, grads, trained, scale, **rates), carry, nll
