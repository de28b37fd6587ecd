"""What models do with their inputs: batch axes, and rare words that become unknown in training."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

UNKNOWN_WORD = 0  # id of the unknown word
_PER_ROW = ("seq_lengths", "actions", "initial_carry")


def any_batch_axes(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a model's call on (batch, time) so that its inputs may have no, one or several batch axes."""

    @functools.wraps(call)
    def on_any_axes(model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
        batch = jax.tree.leaves(inputs)[0].shape[:-1]
        if len(batch) == 1:
            return call(model, inputs, *more, **options)
        axes = len(batch)

        def merge(leaf: Array) -> Array:
            return leaf.reshape(math.prod(batch), *leaf.shape[axes:])

        options |= {name: jax.tree.map(merge, options[name]) for name in _PER_ROW if name in options}
        if getattr(options.get("rngs"), "ndim", None) == axes:  # a key for each row
            options["rngs"] = merge(options["rngs"])
        out = call(model, *jax.tree.map(merge, (inputs, *more)), **options)
        return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[1:]), out)

    return on_any_axes


def forget_rare(
    words: Int[Array, "batch time"], keys: Key[Array, " batch"], rate: float, num_frequent: int
) -> Int[Array, "batch time"]:
    """Return the words, with those from the id `num_frequent` on replaced by the unknown word at this rate.

    In training, this trains the embedding of the unknown word (Lample et al. 2016).
    """
    time = words.shape[1]
    forgotten = jax.vmap(lambda key: jax.random.bernoulli(key, rate, (time,)))(keys)
    return jnp.where(forgotten & (words >= num_frequent), UNKNOWN_WORD, words)
