"""A problem so small that every expectation over the agent's choices is a sum over all action sequences."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F

K, TIME, HIDDEN, INPUT, UNITS, CLASSES = 2, 3, 3, 2, 4, 3
RECURRENCE = F.Recurrence(F.Dynamic(K, 0.7))
LABEL = 1


def sequences(time: int) -> Int[np.ndarray, "sequences time"]:
    """Returns every sequence of actions."""
    return np.array(list(itertools.product(range(1, K + 1), repeat=time)))


SEQUENCES = sequences(TIME)


class Problem(NamedTuple):
    """Weights and one example: h(T) decides the terminal reward, every h(t) a per-step one.

    Attributes:
        lstm: weights of the transition.
        agent: weights of the agent.
        head: from states to logits, (hidden, classes).
        x: the input, (time, in).
        start: h(0) and c(0), (2, hidden).
    """

    lstm: F.LSTMParams
    agent: F.AgentParams
    head: Float[Array, "hidden classes"]
    x: Float[Array, "time in"]
    start: Float[Array, "2 hidden"]


def problem(time: int = TIME, seed: int = 0) -> Problem:
    """Returns a problem of some length, in double precision where JAX has it enabled."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return jnp.asarray(rng.normal(size=shape))

    lstm = F.LSTMParams(draw(INPUT, 4 * HIDDEN), draw(HIDDEN, 4 * HIDDEN), draw(4 * HIDDEN))
    agent = F.AgentParams(draw(HIDDEN, UNITS), draw(INPUT, UNITS), draw(UNITS), draw(UNITS, K), draw(K))
    return Problem(lstm, agent, 2 * draw(HIDDEN, CLASSES), draw(time, INPUT), draw(2, HIDDEN))


class Rollouts(NamedTuple):
    """What several runs of the example came to.

    Attributes:
        decision: traces of the choices, each (count, time).
        rewards: log-likelihood of the label if it were predicted from h(t), (count, time), in nats; the last
            one is the terminal reward.
        seen: h(t-1), the state that the agent saw at step t, (count, time, hidden).
    """

    decision: F.Decision
    rewards: Float[Array, "count time"]
    seen: Float[Array, "count time hidden"]


def rollout(
    of: Problem, keys: Key[Array, " count"], actions: Int[Array, "count time"] | None = None, **options
) -> Rollouts:
    """Runs the example once per key.

    Args:
        of: the problem.
        keys: of the agent's noise.
        actions: to be replayed in place of choices.
        **options: of `F.unroll`.
    """
    count = len(keys)

    def tile(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf, (count, *leaf.shape))

    h0, c0 = map(tile, of.start)
    carry = F.initial_carry(keys, RECURRENCE, F.LSTMState(h0, c0))
    params = F.LayerParams(of.lstm, of.agent)
    _, out = F.unroll(params, carry, tile(of.x), RECURRENCE, actions=actions, **options)
    seen = jnp.concatenate([h0[:, None], out.h[:, :-1]], axis=1)
    return Rollouts(out.decision, jax.nn.log_softmax(out.h @ of.head)[..., LABEL], seen)


def every_sequence(of: Problem) -> Rollouts:
    """Runs the example once with each of `sequences`."""
    actions = jnp.asarray(sequences(len(of.x)))
    return rollout(of, jax.random.split(jax.random.key(0), len(actions)), actions)


def exact_objective(of: Problem, entropy_coef: float = 0.0, per_step: bool = False) -> Float[Array, ""]:
    """J_2 = E[R] + β H, of the terminal reward or of the sum of all steps'."""
    runs = every_sequence(of)
    log_pi = runs.decision.log_prob.sum(axis=1)
    pi = jnp.exp(log_pi)
    total = runs.rewards.sum(axis=1) if per_step else runs.rewards[:, -1]
    return jnp.sum(pi * jax.lax.stop_gradient(total)) - entropy_coef * jnp.sum(pi * log_pi)


def tuples(size: int, time: int = TIME) -> Int[np.ndarray, "tuples size"]:
    """Returns every tuple of places in `sequences`: what `size` rollouts of the example can be."""
    return np.array(list(itertools.product(range(K**time), repeat=size)))


def exact_averaged(of: Problem, size: int) -> Float[Array, ""]:
    """E[log 1/M Σ_m p_m], M = `size`, of the terminal prediction."""
    runs = every_sequence(of)
    pi = jnp.exp(runs.decision.log_prob.sum(axis=1))
    places = tuples(size, len(of.x))
    averaged = jnp.log(jnp.exp(runs.rewards[:, -1])[places].mean(axis=1))
    return jnp.sum(pi[places].prod(axis=1) * averaged)


def exact_values(of: Problem) -> Float[np.ndarray, "sequences time"]:
    """E[R | a(1), ..., a(t-1)], R the terminal reward, before each step of each of `sequences`."""
    runs = every_sequence(of)
    pi = np.exp(np.asarray(runs.decision.log_prob).sum(axis=1))
    R = np.asarray(runs.rewards[:, -1])
    actions = sequences(len(of.x))
    values = np.empty(actions.shape)
    for t in range(len(of.x)):
        alike = (actions[:, None, :t] == actions[None, :, :t]).all(axis=-1)
        values[:, t] = (alike @ (pi * R)) / (alike @ pi)
    return values
