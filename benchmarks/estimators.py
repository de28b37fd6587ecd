"""Measure estimators of the agent's gradient against the sum over all action sequences.

    python -m benchmarks.estimators --samples 100000

On `tiny_problem`, in double precision, with a terminal reward. An estimate is the gradient of the
agent's weights from M rollouts of one example. 20,000 estimates of each take half a minute on two
cores.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from benchmarks import report, run_command, tiny_problem
from benchmarks.tiny_problem import Problem
from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.config.flags import Count

# Among the first eight seeds of problems of this length, choices affect the reward most with this
# one.
TIME = 4
PROBLEM_SEED = 2
ROLLOUTS = 4
BETA = 0.1  # weight of the entropy
DECAY = 0.99
CHUNK = 1000  # estimates computed at once


class Seen(NamedTuple):
    """Values of the M rollouts of an example that an estimator can use."""

    decisions: F.DecisionTrace
    reward: Float[Array, " M"]
    past: Float[Array, ""]  # moving average of the mean rewards of earlier estimates


class Estimator(NamedTuple):
    """An estimator: minus the gradient of its loss estimates the gradient of its objective."""

    name: str
    objective: str  # a key of `OBJECTIVES`
    loss: Callable[[Seen], Float[Array, ""]]
    mode: str = "sample"  # of `F.Policy`


def reinforce(
    baseline: Callable[[Seen], Any] = lambda seen: None, *, sampled: float = 0.0, exact: float = 0.0
) -> Callable[[Seen], Float[Array, ""]]:
    """Return the loss of Eq. 5 with a baseline, and a sampled or an exact entropy bonus.

    The exact entropy ignores how a choice moves later entropies, so it is biased.
    """

    def loss(seen: Seen) -> Float[Array, ""]:
        options = dict(baseline=baseline(seen), entropy_coef=sampled)
        score = rl.reinforce(seen.decisions, seen.reward, **options)
        return score - exact * rl.entropy(seen.decisions)

    return loss


def others(seen: Seen) -> Float[Array, " M"]:
    """Return the mean reward of the other rollouts."""
    return rl.leave_one_out(seen.reward)


REWARD = "E[R]"
WITH_ENTROPY = f"E[R] + {BETA:g} H"
AVERAGED = f"E[log mean of {ROLLOUTS} p]"
OBJECTIVES = {
    REWARD: tiny_problem.exact_objective,
    WITH_ENTROPY: partial(tiny_problem.exact_objective, entropy_coef=BETA),
    AVERAGED: partial(tiny_problem.exact_averaged, size=ROLLOUTS),
}
ESTIMATORS = (
    Estimator("Eq. 5, no baseline", REWARD, reinforce()),
    Estimator("moving average", REWARD, reinforce(lambda seen: seen.past)),
    Estimator("leave-one-out", REWARD, reinforce(others)),
    Estimator("sampled entropy, no baseline", WITH_ENTROPY, reinforce(sampled=BETA)),
    Estimator("exact entropy, no baseline", WITH_ENTROPY, reinforce(exact=BETA)),
    Estimator("sampled entropy, leave-one-out", WITH_ENTROPY, reinforce(others, sampled=BETA)),
    Estimator("exact entropy, leave-one-out", WITH_ENTROPY, reinforce(others, exact=BETA)),
    Estimator("VIMCO", AVERAGED, lambda seen: rl.reinforce(seen.decisions, rl.vimco(seen.reward))),
    *(Estimator(mode, REWARD, lambda seen: -seen.reward.mean(), mode) for mode in F.RELAXATIONS),
)


def exact_gradient(objective: Callable, of: Problem) -> Float[Array, " weights"]:
    """Return the gradient of an objective with respect to the agent's flattened weights."""
    return ravel_pytree(jax.grad(lambda agent: objective(of._replace(agent=agent)))(of.agent))[0]


def run_rollouts(of: Problem, key: Key[Array, ""], past: Float[Array, ""], mode: str) -> Seen:
    """Run M rollouts of the example with the noise of `key`, and return what estimators need."""
    policy = F.Policy(mode)
    runs = tiny_problem.rollout(of, jax.random.split(key, ROLLOUTS), policy=policy)
    decisions = F.DecisionTrace.of(
        runs.decision, tiny_problem.RECURRENCE.time_skip, None, mode=mode
    )
    return Seen(decisions, runs.rewards[:, -1], past)


def past_rewards(of: Problem, keys: Key[Array, " N"]) -> Float[Array, " N"]:
    """Return for each estimate the moving average of earlier rewards; 0 for the first."""
    nothing = jnp.zeros(())
    means = jax.lax.map(
        lambda key: run_rollouts(of, key, nothing, "sample").reward.mean(), keys, batch_size=CHUNK
    )

    def step(average, mean):
        # As in Adam, the average is divided by that of ones.
        total, weight = average
        past = jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), 0)
        total = DECAY * total + (1 - DECAY) * mean
        return (total, DECAY * weight + (1 - DECAY)), past

    return jax.lax.scan(step, (nothing, nothing), means)[1]


def estimates(
    sharing: tuple[Estimator, ...], of: Problem, keys: Key[Array, " N"], past: Float[Array, " N"]
) -> Float[Array, "estimators N weights"]:
    """Return N estimates of minus the gradient by estimators that share a mode, so rollouts."""
    weights, as_agent = ravel_pytree(of.agent)

    def losses(weights, key, past):
        seen = run_rollouts(of._replace(agent=as_agent(weights)), key, past, sharing[0].mode)
        return jnp.stack([estimator.loss(seen) for estimator in sharing])

    found = jax.lax.map(
        lambda own: jax.jacrev(losses)(weights, *own), (keys, past), batch_size=CHUNK
    )
    return jnp.moveaxis(found, 1, 0)


def statistics(
    found: Float[np.ndarray, "N weights"], exact: Float[np.ndarray, " weights"]
) -> tuple[str, str, str]:
    """Return the relative bias (and standard error), variance and cosine of N estimates.

    The bias is |mean - exact| / |exact|; its standard error is its root mean square for an unbiased
    estimator with this variance, the trace of the covariance of one estimate. The cosine is the
    mean over estimates.
    """
    norm = np.linalg.norm(exact)
    bias = np.linalg.norm(found.mean(axis=0) - exact) / norm
    variance = found.var(axis=0).sum()
    standard_error = np.sqrt(variance / len(found)) / norm
    # An estimate of zeros has the cosine 0.
    lengths = np.linalg.norm(found, axis=1) * norm
    cosine = (found @ exact / np.maximum(lengths, np.finfo(found.dtype).tiny)).mean()
    # The variance of an estimator without noise is rounding error.
    shown = "0" if variance < 1e-20 else f"{variance:.3g}"
    return f"{bias:.4f} ({standard_error:.4f})", shown, f"{cosine:.3f}"


def compare(samples: Count = 20_000) -> None:
    """Print bias and variance of estimators of the agent's gradient, all with the same noise.

    Args:
        samples: N, estimates by each estimator.
    """
    rows = []
    with jax.enable_x64(True):
        of = tiny_problem.problem(TIME, PROBLEM_SEED)
        exact = {}
        for name, objective in OBJECTIVES.items():
            exact[name] = np.asarray(jax.jit(partial(exact_gradient, objective))(of))
        keys = jax.random.split(jax.random.key(0), samples)
        past = jax.jit(past_rewards)(of, keys)
        estimate = jax.jit(estimates, static_argnums=0)
        # Estimators of one mode share their rollouts.
        for mode, group in groupby(ESTIMATORS, key=lambda estimator: estimator.mode):
            print(f"estimators, {mode}", file=sys.stderr)
            sharing = tuple(group)
            found = np.asarray(estimate(sharing, of, keys, past))
            for (name, objective, *_), own in zip(sharing, found, strict=True):
                rows.append([name, objective, *statistics(own, -exact[objective])])
    header = ("estimator", "objective", "relative bias (s.e.)", "total variance", "cosine")
    text = report.markdown(header, rows)
    print(f"{report.machine()}; {samples:,} estimates, M = {ROLLOUTS}\n\n{text}")


if __name__ == "__main__":
    run_command(compare)
