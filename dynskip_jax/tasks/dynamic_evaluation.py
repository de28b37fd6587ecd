"""Measure perplexity with dynamic evaluation: parameters adapt to the text (Krause et al. 2018)."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dynskip_jax import functional as F
from dynskip_jax.data import Batch, num_segments, segments
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.task import evaluated

PyTree = Any
Advance = Callable[[], None]
_STREAMS = 100  # batch size for the gradient statistics, as in Krause et al.
_AT_ONCE = 100  # number of segments in one compiled call


class DynamicEvaluation:
    """An evaluation of trained language models that keep learning from the text they have read.

    A segment is first predicted, then used for an update. So no word changes its own probability.

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
        self._params = params
        self._policy = learner.policy() if policy is None else policy
        self._num_steps = num_steps
        self._add_squares = jax.jit(jax.vmap(self._add_squares_of_one, (0, 0, 0, 0, None)))
        self._follow = jax.jit(jax.vmap(self._follow_one, (0, 0, 0, 0, 0, None, None)))

    def num_parts(self, split: str) -> int:
        """Return how often `advance` is called for a split; `train` is the split of `gradient_scale`."""
        size = self._task.tokens(split).size
        count = num_segments(size, self._num_streams(split), self._num_steps, drop_tail=False)
        return -(-count // _AT_ONCE)

    def gradient_scale(self, advance: Advance = lambda: None) -> F.GradientScale:
        """Return the scale of gradients of a segment's mean loss on the training text, (seeds, ...).

        Args:
            advance: Function called after each of `num_parts("train")` parts.
        """
        squares = jax.tree.map(jnp.zeros_like, self._params)
        carry, count = self._initial_carry("train"), 0
        for part in self._parts("train"):
            squares, carry = self._add_squares(squares, carry, self._params, self._policy, part)
            count += int(part.mask.any(axis=(1, 2)).sum())
            advance()
        return jax.jit(jax.vmap(F.gradient_scale))(jax.tree.map(lambda leaf: leaf / count, squares))

    def perplexity(
        self,
        split: str,
        scale: F.GradientScale,
        *,
        learning_rate: float,
        decay: float,
        epsilon: float = 2e-5,
        advance: Advance = lambda: None,
    ) -> Float[np.ndarray, " seeds"]:
        """Return the perplexity of each seed over all tokens of dev or test, read as one stream.

        Args:
            split: Name of the split, `dev` or `test`.
            scale: Result of `gradient_scale`.
            learning_rate: η of `functional.adapt`.
            decay: λ of `functional.adapt`.
            epsilon: ε of `functional.adapt`.
            advance: Function called after each of `num_parts(split)` parts.
        """
        params, carry = self._params, self._initial_carry(split)
        rates = dict(learning_rate=learning_rate, decay=decay, epsilon=epsilon)
        totals = np.zeros((len(self._keys), 2))
        for part in self._parts(split):
            params, carry, sums = self._follow(params, carry, self._params, scale, self._policy, part, rates)
            totals += np.asarray(sums, np.float64)
            advance()
        nll, tokens = totals.T
        with np.errstate(over="ignore"):
            return np.exp(nll / tokens)

    def _num_streams(self, split: str) -> int:
        if split != "train":
            return 1
        return max(1, min(_STREAMS, self._task.tokens(split).size // self._num_steps))

    def _initial_carry(self, split: str) -> PyTree:
        streams = self._num_streams(split)
        model = self._learner.model
        start = jax.vmap(lambda params, key: self._task.initial_carry(model(params), streams, key))
        return start(self._params, self._keys)

    def _parts(self, split: str) -> Iterator[Batch]:
        """Yield groups of `_AT_ONCE` segments of a split, each leaf (segments, streams, time).

        The last group is filled up with masked segments.
        """
        read = segments(
            self._task.tokens(split),
            self._num_streams(split),
            self._num_steps,
            drop_tail=False,
            first_token=self._task.end_of_line,
        )
        leaves = [np.stack(leaf) for leaf in zip(*((s.inputs, s.targets, s.mask) for s in read), strict=True)]
        missing = -len(leaves[0]) % _AT_ONCE
        padded = [np.pad(leaf, ((0, missing), (0, 0), (0, 0))) for leaf in leaves]
        for start in range(0, len(padded[0]), _AT_ONCE):
            yield Batch(*(leaf[start : start + _AT_ONCE] for leaf in padded))

    def _gradient(self, params, carry, policy, segment: Batch):
        """Return the gradient of a segment's mean loss, and (the next carry, the sums of nll and tokens)."""

        def loss(params):
            model = self._learner.model(params)
            read, _ = self._task.read(model, segment, carry, **evaluated(policy, None))
            nll = -read.log_probs.target
            sums = jnp.sum(nll, where=segment.mask), jnp.sum(segment.mask, dtype=nll.dtype)
            return sums[0] / jnp.maximum(sums[1], 1), (read.carry, jnp.stack(sums))

        return jax.grad(loss, has_aux=True)(params)

    def _add_squares_of_one(self, squares, carry, params, policy, part: Batch):
        def step(state, segment):
            squares, carry = state
            grads, (carry, _) = self._gradient(params, carry, policy, segment)
            return (jax.tree.map(lambda s, g: s + g * g, squares, grads), carry), None

        return jax.lax.scan(step, (squares, carry), part)[0]

    def _follow_one(self, params, carry, trained, scale, policy, part: Batch, rates):
        def step(state, segment):
            params, carry = state
            grads, (carry, sums) = self._gradient(params, carry, policy, segment)
            return (F.adapt(params, grads, trained, scale, **rates), carry), sums

        (params, carry), sums = jax.lax.scan(step, (params, carry), part)
        return params, carry, sums.sum(axis=0)
