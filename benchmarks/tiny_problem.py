"""Define a tiny problem with expectations that are exact sums over all action sequences."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F

K = 2
TIME = 3
HIDDEN = 3
INPUT = 2
UNITS = 4
CLASSES = 3
RECURRENCE = F.Recurrence(F.Dynamic(K, 0.7))
LABEL = 1


def sequences(time: int) -> Int[np.ndarray, "sequences time"]:
    """Return every sequence of `time` actions, each in 1..K."""
    return np.array(list(itertools.product(range(1, K + 1), repeat=time)))


class Problem(NamedTuple):
    """Weights and one example; h(T) determines the last reward, each h(t) that of step t."""

    lstm: F.LSTMParams
    agent: F.AgentParams
    head: Float[Array, "hidden classes"]  # from states to logits
    x: Float[Array, "time in"]
    start: Float[Array, "2 hidden"]  # h(0) and c(0)


def problem(time: int = TIME, seed: int = 0) -> Problem:
    """Return a random problem with `time` steps, in double precision if JAX has it enabled."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return jnp.asarray(rng.normal(size=shape))

    lstm = F.LSTMParams(draw(INPUT, 4 * HIDDEN), draw(HIDDEN, 4 * HIDDEN), draw(4 * HIDDEN))
    agent = F.AgentParams(
        draw(HIDDEN, UNITS), draw(INPUT, UNITS), draw(UNITS), draw(UNITS, K), draw(K)
    )
    return Problem(lstm, agent, 2 * draw(HIDDEN, CLASSES), draw(time, INPUT), draw(2, HIDDEN))


class Rollouts(NamedTuple):
    """Results of several rollouts of the example."""

    decision: F.Decision  # each (count, time)
    # Log-likelihood of the label from h(t); the last one is terminal.
    rewards: Float[Array, "count time"]


def rollout(
    of: Problem,
    keys: Key[Array, " count"],
    actions: Int[Array, "count time"] | None = None,
    **options,
) -> Rollouts:
    """Run the example once per key; `options` are further arguments of `F.unroll`."""
    count = len(keys)

    def tile(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf, (count, *leaf.shape))

    # All rollouts read the same example from the same state.
    h0, c0 = map(tile, of.start)
    carry = F.initial_carry(keys, RECURRENCE, F.LSTMState(h0, c0))
    params = F.LayerParams(of.lstm, of.agent)
    _, out = F.unroll(params, carry, tile(of.x), RECURRENCE, actions=actions, **options)
    return Rollouts(out.decision, jax.nn.log_softmax(out.h @ of.head)[..., LABEL])


def every_sequence(of: Problem) -> Rollouts:
    """Run the example once with each action sequence of `sequences`."""
    actions = jnp.asarray(sequences(len(of.x)))
    return rollout(of, jax.random.split(jax.random.key(0), len(actions)), actions)


def exact_objective(
    of: Problem, entropy_coef: float = 0.0, per_step: bool = False
) -> Float[Array, ""]:
    """Return J_2 = E[R] + β H; R is the last reward, or all rewards' sum with `per_step`."""
    runs = every_sequence(of)
    log_pi = runs.decision.log_prob.sum(axis=1)
    pi = jnp.exp(log_pi)
    # The network is held: only π has a gradient.
    total = runs.rewards.sum(axis=1) if per_step else runs.rewards[:, -1]
    return jnp.sum(pi * jax.lax.stop_gradient(total)) - entropy_coef * jnp.sum(pi * log_pi)


def tuples(size: int, time: int = TIME) -> Int[np.ndarray, "tuples size"]:
    """Return every tuple of indices into `sequences`, that is, every outcome of `size` rollouts."""
    return np.array(list(itertools.product(range(K**time), repeat=size)))


def exact_averaged(of: Problem, size: int) -> Float[Array, ""]:
    """Return E[log 1/M Σ_m p_m] of the terminal prediction, with M = `size`."""
    runs = every_sequence(of)
    pi = jnp.exp(runs.decision.log_prob.sum(axis=1))
    # Rollouts are independent: the probability of a tuple is a product.
    places = tuples(size, len(of.x))
    averaged = jnp.log(jnp.exp(runs.rewards[:, -1])[places].mean(axis=1))
    return jnp.sum(pi[places].prod(axis=1) * averaged)
