"""Bias and variance of estimators of the agent's gradient, against the sum over all action sequences.

    python -m benchmarks.estimators
    python -m benchmarks.estimators --samples 100000 --out bench/

On `tiny_problem`, in double precision, with a terminal reward. An estimate is the gradient of the agent's
weights from M rollouts of one example, M the same for all estimators. Each is held against the exact gradient
of the objective it is meant for: the mean of N estimates, their spread, and how far a single one points
astray. 20,000 estimates of each take half a minute on two cores.
"""

import dataclasses
import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from rich.console import Console

from benchmarks import machine, tiny_problem
from benchmarks.results import write
from benchmarks.tiny_problem import HIDDEN, INPUT, Problem
from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.settings import path_setting, setting
from dynskip_jax.training.progress import Progress

# Among the first eight seeds of problems of this length, choices affect the reward most with this one.
TIME, PROBLEM_SEED = 4, 2
ROLLOUTS = 4
ENTROPY_COEF = 0.1
DECAY = 0.99
TEMPERATURE = 1.0
CRITIC_UNITS = 16
CHUNK = 1000  # estimates computed at once


@dataclasses.dataclass(frozen=True)
class Flags:
    """Command line."""

    samples: int = setting(20_000, "N, estimates by each estimator.", at_least=1)
    seed: int = setting(0, "Of the agent's noise.", at_least=0)
    out: str | None = path_setting(None, "Folder for estimators.json and estimators.md.")


class Seen(NamedTuple):
    """Values of the M rollouts of an example that an estimator can use.

    Attributes:
        log_prob: log π of the sampled choices, (M, time).
        entropy: H(π) at each step, (M, time).
        reward: Terminal reward of each rollout, (M,).
        value: V(s(t)) of the critic, (M, time).
        past: Moving average of the mean rewards of earlier estimates.
    """

    log_prob: Float[Array, "M time"]
    entropy: Float[Array, "M time"]
    reward: Float[Array, " M"]
    value: Float[Array, "M time"]
    past: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Estimator:
    """An estimator of a gradient from M rollouts.

    Attributes:
        name: Name in the table.
        objective: Objective that it ascends, a key of `exact_gradients`.
        loss: Loss whose gradient with respect to the agent's weights is the estimate of minus the objective's
            gradient.
        mode: Mode of `F.Policy`.
        unbiased: Whether the mean of the estimates is the exact gradient.
    """

    name: str
    objective: str
    loss: Callable[[Seen], Float[Array, ""]]
    mode: str = "sample"
    unbiased: bool = True


@dataclasses.dataclass(frozen=True)
class Result:
    """Statistics of N estimates.

    Attributes:
        estimator: Estimator that was used.
        bias: |mean - exact| / |exact|.
        standard_error: Root mean square of the `bias` that an unbiased estimator with this variance has.
        variance: Trace of the covariance of one estimate.
        cosine: Mean cosine between one estimate and the exact gradient; an estimate of 0 counts as 0.
        exact: |exact|.
    """

    estimator: Estimator
    bias: float
    standard_error: float
    variance: float
    cosine: float
    exact: float


def estimators() -> list[Estimator]:
    """Return all estimators of the table."""
    reward, with_entropy = "E[R]", f"E[R] + {ENTROPY_COEF:g} H"

    def reinforce(seen: Seen, baseline: Array, entropy_coef: float) -> Float[Array, " M"]:
        def of_one(log_probs, reward, baseline):
            return rl.reinforce_loss(
                log_probs, reward, valid=None, entropy_coef=entropy_coef, baseline=baseline
            )

        return jax.vmap(of_one)(seen.log_prob, seen.reward, baseline)

    def scored(baseline: Callable[[Seen], Any], entropy_coef: float = 0.0) -> Callable:
        return lambda seen: reinforce(
            seen, jnp.broadcast_to(baseline(seen), seen.reward.shape), entropy_coef
        ).mean()

    def with_exact_entropy(loss: Callable) -> Callable:
        return lambda seen: loss(seen) - ENTROPY_COEF * seen.entropy.sum(axis=1).mean()

    def learned(seen: Seen) -> Float[Array, ""]:
        return reinforce(seen, seen.value, 0.0).mean()

    def none(seen: Seen) -> float:
        return 0.0

    def past(seen: Seen) -> Float[Array, ""]:
        return seen.past

    def others(seen: Seen) -> Float[Array, " M"]:
        return rl.leave_one_out_mean(seen.reward)

    return [
        Estimator("Eq. 5, no baseline", reward, scored(none)),
        Estimator("moving average", reward, scored(past)),
        Estimator("learned baseline", reward, learned),
        Estimator("leave-one-out", reward, scored(others)),
        Estimator("sampled entropy, no baseline", with_entropy, scored(none, ENTROPY_COEF)),
        Estimator(
            "exact entropy, no baseline", with_entropy, with_exact_entropy(scored(none)), unbiased=False
        ),
        Estimator("sampled entropy, leave-one-out", with_entropy, scored(others, ENTROPY_COEF)),
        Estimator(
            "exact entropy, leave-one-out", with_entropy, with_exact_entropy(scored(others)), unbiased=False
        ),
        Estimator(
            "VIMCO",
            f"E[log mean of {ROLLOUTS} p]",
            lambda seen: rl.vimco_loss(seen.log_prob, seen.reward),
        ),
        *(
            Estimator(mode, reward, lambda seen: -seen.reward.mean(), mode=mode, unbiased=False)
            for mode in F.RELAXATIONS
        ),
    ]


def exact_gradients(of: Problem) -> dict[str, Float[Array, " weights"]]:
    """Return the gradient of each objective with respect to the agent's flattened weights."""
    objectives = {
        "E[R]": tiny_problem.exact_objective,
        f"E[R] + {ENTROPY_COEF:g} H": lambda of: tiny_problem.exact_objective(of, ENTROPY_COEF),
        f"E[log mean of {ROLLOUTS} p]": lambda of: tiny_problem.exact_averaged(of, ROLLOUTS),
    }

    def gradient(objective: Callable) -> Float[Array, " weights"]:
        return ravel_pytree(jax.grad(lambda agent: objective(of._replace(agent=agent)))(of.agent))[0]

    return {name: jax.jit(gradient, static_argnums=0)(objective) for name, objective in objectives.items()}


def fitted_critic(of: Problem) -> F.AgentParams:
    """Return a critic fitted to the exact values: a random hidden layer, and a least-squares output layer."""
    rng = np.random.default_rng(0)
    shapes = [(HIDDEN, CRITIC_UNITS), (INPUT, CRITIC_UNITS), (CRITIC_UNITS,)]
    w_h, w_x, b = (rng.normal(size=shape) for shape in shapes)
    seen = np.asarray(tiny_problem.every_sequence(of).seen)
    units = np.tanh(seen @ w_h + np.asarray(of.x) @ w_x + b).reshape(-1, CRITIC_UNITS)
    units = np.concatenate([units, np.ones((len(units), 1))], axis=1)
    weights, *_ = np.linalg.lstsq(units, tiny_problem.exact_values(of).reshape(-1, 1))
    return F.AgentParams(*map(jnp.asarray, (w_h, w_x, b, weights[:-1], weights[-1])))


def run_rollouts(
    of: Problem,
    critic: F.AgentParams,
    key: Key[Array, ""],
    past: Float[Array, ""],
    mode: str,
) -> Seen:
    """Run M rollouts of the example, and return what estimators need.

    Args:
        of: Problem with its example.
        critic: Critic for the learned baseline.
        key: Key for the noise of this estimate.
        past: Moving average of earlier rewards.
        mode: Mode of `F.Policy`.
    """
    policy = F.Policy(mode, temperature=TEMPERATURE)
    runs = tiny_problem.rollout(of, jax.random.split(key, ROLLOUTS), policy=policy)
    x = jnp.broadcast_to(of.x, (ROLLOUTS, TIME, INPUT))
    return Seen(
        runs.decision.log_prob,
        runs.decision.entropy,
        runs.rewards[:, -1],
        rl.critic_values(critic, x, runs.seen),
        past,
    )


def past_rewards(of: Problem, critic: F.AgentParams, keys: Key[Array, " N"]) -> Float[Array, " N"]:
    """Return for each estimate the moving average of the rewards of earlier estimates; 0 for the first."""
    nothing = jnp.zeros(())
    means = jax.lax.map(
        lambda key: run_rollouts(of, critic, key, nothing, "sample").reward.mean(), keys, batch_size=CHUNK
    )

    def step(average, value):
        return rl.moving_average_update(average, value, DECAY), rl.moving_average_value(average)

    return jax.lax.scan(step, rl.moving_average_start((), means.dtype), means)[1]


def estimates(
    sharing: tuple[Estimator, ...],
    of: Problem,
    critic: F.AgentParams,
    keys: Key[Array, " N"],
    past: Float[Array, " N"],
) -> Float[Array, "estimators N weights"]:
    """Return N estimates of minus the objective's gradient, in the flattened weights, by each estimator.

    Args:
        sharing: Estimators with the same mode, which are applied to the same rollouts.
        of: Problem with its example.
        critic: Critic for the learned baseline.
        keys: Keys for the noise of each estimate.
        past: Moving average of earlier rewards, for each estimate.
    """
    weights, as_agent = ravel_pytree(of.agent)

    def losses(weights, key, past):
        seen = run_rollouts(of._replace(agent=as_agent(weights)), critic, key, past, sharing[0].mode)
        return jnp.stack([estimator.loss(seen) for estimator in sharing])

    found = jax.lax.map(lambda own: jax.jacrev(losses)(weights, *own), (keys, past), batch_size=CHUNK)
    return jnp.moveaxis(found, 1, 0)


def summary(
    estimator: Estimator, found: Float[np.ndarray, "N weights"], exact: Float[np.ndarray, " weights"]
) -> Result:
    """Return statistics that compare the estimates with the exact gradient.

    Args:
        estimator: Estimator of the estimates.
        found: The N estimates.
        exact: Exact value of their mean, minus the objective's gradient.
    """
    norm = np.linalg.norm(exact)
    variance = found.var(axis=0).sum()
    cosines = found @ exact / np.maximum(np.linalg.norm(found, axis=1) * norm, np.finfo(found.dtype).tiny)
    return Result(
        estimator,
        bias=float(np.linalg.norm(found.mean(axis=0) - exact) / norm),
        standard_error=float(np.sqrt(variance / len(found)) / norm),
        variance=float(variance),
        cosine=float(cosines.mean()),
        exact=float(norm),
    )


def run(samples: int, seed: int = 0, console: Console | None = None) -> list[Result]:
    """Measure all estimators with the same noise, and return the results.

    Args:
        samples: N, the number of estimates by each estimator.
        seed: Seed of the noise.
        console: Console for a progress bar. None prints to standard error.
    """
    chosen = estimators()
    results = []
    with jax.enable_x64(True), Progress(len(chosen), "estimators", console=console) as progress:
        of = tiny_problem.problem(TIME, PROBLEM_SEED)
        critic, exact = fitted_critic(of), exact_gradients(of)
        keys = jax.random.split(jax.random.key(seed), samples)
        past = jax.jit(past_rewards)(of, critic, keys)
        for mode, group in groupby(chosen, key=lambda estimator: estimator.mode):
            sharing = tuple(group)
            found = np.asarray(jax.jit(estimates, static_argnums=0)(sharing, of, critic, keys, past))
            for estimator, own in zip(sharing, found, strict=True):
                results.append(summary(estimator, own, -np.asarray(exact[estimator.objective])))
            progress.advance(len(sharing), now=mode)
    return results


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| estimator | objective | relative bias (s.e.) | total variance | cosine |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in results:
        bias = f"{result.bias:.4f} ({result.standard_error:.4f})"
        name, objective = result.estimator.name, result.estimator.objective
        # The variance of an estimator without noise is rounding error.
        variance = "0" if result.variance < 1e-20 else f"{result.variance:.3g}"
        lines.append(f"| {name} | {objective} | {bias} | {variance} | {result.cosine:.3f} |")
    return "\n".join(lines)


def as_json(result: Result) -> dict[str, Any]:
    """Return the statistics with the names of the estimator and the objective."""
    figures = dataclasses.asdict(result)
    figures["estimator"] = result.estimator.name
    return {"objective": result.estimator.objective, "unbiased": result.estimator.unbiased, **figures}


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.estimators", __doc__, Flags, sys.argv[1:])
    about = machine.describe("default", False)
    # The bar goes to standard error, so that standard output can be redirected to a Markdown file.
    terminal = Console(stderr=True)
    results = run(flags.samples, flags.seed, terminal if terminal.is_terminal else None)
    text = table(results)
    print(f"{machine.one_line(about)}; {flags.samples:,} estimates, M = {ROLLOUTS}\n\n{text}")
    if flags.out is not None:
        content = {"about": about, "samples": flags.samples, "rollouts": ROLLOUTS, "seed": flags.seed}
        content["results"] = [as_json(result) for result in results]
        write(flags.out, "estimators", content, text)


if __name__ == "__main__":
    run_main(main)
