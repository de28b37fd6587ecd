"""How much there is to win by choosing: what every choice costs, and what a probe trained on that can win."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from dynskip_jax.errors import UserError

_FITTED = 0.7  # share of the steps on which constants and probes are fitted; figures are those of the rest
_HELD_OUT = 0.15  # of those, the share on which the probe's epoch is chosen
_UPDATES, _BATCH, _RATE = 2000, 256, 1e-3
_BLOCK, _LEAST_BLOCKS, _RESAMPLES = 50, 10, 1000  # of the bootstrap
_LEAST = 40  # steps below which nothing can be said


class Gain(NamedTuple):
    """A mean of paired differences, nats.

    Attributes:
        mean: how much less the loss is.
        margin: 1.96 standard errors of that, by a block bootstrap.
    """

    mean: float
    margin: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.margin:.4f}"

    @property
    def is_chance(self) -> bool:
        """Whether the difference is not above 0 for certain."""
        return self.mean <= self.margin


def paired_gain(of_one: Float[np.ndarray, " steps"], of_other: Float[np.ndarray, " steps"]) -> Gain:
    """Return how much less the other one loses, nats at each of the same steps; there are at least two.

    Neighbouring steps are not independent: the standard error is that of a circular block bootstrap
    (Politis and Romano 1992) with blocks of 50 steps, or of fewer where there are few steps.
    """
    less = np.asarray(of_one - of_other, np.float64)
    steps = len(less)
    size = max(1, min(_BLOCK, steps // _LEAST_BLOCKS))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([less, less[: size - 1]]))])
    of_blocks = sums[size:] - sums[:-size]  # one that begins at each step
    starts = np.random.default_rng(0).integers(steps, size=(_RESAMPLES, -(-steps // size)))
    means = of_blocks[starts].mean(axis=1) / size
    return Gain(float(less.mean()), float(1.96 * means.std(ddof=1)))


@dataclasses.dataclass(frozen=True)
class OracleLosses:
    """Mean losses, nats, over the last 30 % of the steps, where a choice is made in one way or another.

    Attributes:
        count: these steps.
        taken: as the agent chose.
        random: k drawn evenly, in expectation.
        constant: of each k, at all steps.
        fixed: the k that is best on the first 70 %.
        hindsight: the best k at each step.
        averaged: the K predictions averaged, as probabilities.
        probes: by what it sees, that of an MLP trained on the first 70 % of the steps to give the best k.
        gain: by what it sees, how far a probe is below the better of `fixed` and random on the first 70 %.
        own: how far the agent is below that one.
    """

    count: int
    taken: float
    random: float
    constant: tuple[float, ...]
    fixed: int
    hindsight: float
    averaged: float
    probes: Mapping[str, float]
    gain: Mapping[str, Gain]
    own: Gain


def oracle_losses(
    losses: Float[np.ndarray, "steps K"],
    taken: Int[np.ndarray, " steps"],
    seen: Mapping[str, Float[np.ndarray, "steps features"]],
    *,
    units: int = 50,
    seed: int = 0,
) -> OracleLosses:
    """Compares ways to choose among K states where it is known what every choice costs.

    Args:
        losses: of each choice, k from 1, nats.
        taken: the k that the agent chose, 1..K.
        seen: what a probe may see, by a name for it.
        units: hidden units of a probe.
        seed: of the probes' initial weights and order of steps.

    Raises:
        UserError: there are too few steps.
    """
    steps = len(losses)
    if steps < _LEAST:
        raise UserError(
            f"{steps} choices are too few to say anything: give more text, at least {_LEAST} steps"
        )
    fitted = int(_FITTED * steps)
    rest = losses[fitted:]
    fixed = int(losses[:fitted].mean(axis=0).argmin())
    of_random = rest.mean(axis=1)
    # Which of the two is the better choice without looking is decided where the constant was chosen.
    bar = rest[:, fixed] if losses[:fitted, fixed].mean() <= losses[:fitted].mean() else of_random

    probes, gain = {}, {}
    for name, features in seen.items():
        chosen = _probe(features, losses[:fitted], features[fitted:], units, seed)
        of_probe = np.take_along_axis(rest, chosen[:, None], axis=1)[:, 0]
        probes[name] = float(of_probe.mean())
        gain[name] = paired_gain(bar, of_probe)
    of_agent = np.take_along_axis(rest, taken[fitted:, None] - 1, axis=1)[:, 0]
    averaged = np.log(rest.shape[1]) - np.logaddexp.reduce(-rest, axis=1)
    return OracleLosses(
        count=len(rest),
        taken=float(of_agent.mean()),
        random=float(of_random.mean()),
        constant=tuple(map(float, rest.mean(axis=0))),
        fixed=fixed + 1,
        hindsight=float(rest.min(axis=1).mean()),
        averaged=float(averaged.mean()),
        probes=probes,
        gain=gain,
        own=paired_gain(bar, of_agent),
    )


def _probe(
    features: Float[np.ndarray, "steps features"],
    losses: Float[np.ndarray, "fitted K"],
    others: Float[np.ndarray, "rest features"],
    units: int,
    seed: int,
) -> Int[np.ndarray, " rest"]:
    """Trains an MLP π(k | features) on the exact expectation of the loss, Σ_k π(k) loss(k), and returns its
    most probable choices (from 0) at other steps; the epoch is the best one on the end of what is fitted."""
    features = np.asarray(features[: len(losses)], np.float32)
    middle, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
    x, rest = ((values - middle) / scale for values in (features, others))
    costs = np.asarray(losses - losses.mean(axis=1, keepdims=True), np.float32)
    held = max(1, int(_HELD_OUT * len(x)))
    train, check = slice(0, len(x) - held), slice(len(x) - held, None)
    one, two = jax.random.split(jax.random.key(seed))
    size, K = x.shape[1], losses.shape[1]
    params = (
        jax.random.normal(one, (size, units)) / np.sqrt(size),
        jnp.zeros((1, units)),
        jax.random.normal(two, (units, K)) * 0.01,
        jnp.zeros((1, K)),
    )
    optimizer = optax.adam(_RATE)

    def logits(params, x):
        w_in, b_in, w_out, b_out = params
        return jnp.tanh(x @ w_in + b_in) @ w_out + b_out

    def expected(params, x, costs):
        return (jax.nn.softmax(logits(params, x)) * costs).sum(axis=-1).mean()

    @jax.jit
    def epoch(params, state, x, costs):
        def step(carried, batch):
            params, state = carried
            updates, state = optimizer.update(jax.grad(expected)(params, *batch), state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, state), (x, costs))[0]

    best_of = jax.jit(lambda params, x: logits(params, x).argmax(axis=-1))

    def cost_of(params) -> float:
        chosen = np.asarray(best_of(params, x[check]))
        return float(np.take_along_axis(costs[check], chosen[:, None], axis=1).mean())

    size_of_batch = min(_BATCH, len(x[train]))
    whole = len(x[train]) // size_of_batch * size_of_batch
    state, kept = optimizer.init(params), (np.inf, params)
    order = np.random.default_rng(seed)
    for _ in range(-(-_UPDATES * size_of_batch // whole)):
        rows = order.permutation(len(x[train]))[:whole].reshape(-1, size_of_batch)
        params, state = epoch(params, state, x[rows], costs[rows])
        kept = min(kept, (cost_of(params), params), key=lambda pair: pair[0])
    return np.asarray(best_of(kept[1], rest))
