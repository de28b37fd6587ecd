"""Oracle analysis: compare the agent's choices with random, constant, best and learned ones (probes)."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from dynskip_jax.errors import UserError

_FITTED = 0.7  # fraction of the steps used to fit constants and probes; results are from the rest
_HELD_OUT = 0.15  # fraction of the fitting steps held out to select the probe's epoch
_UPDATES, _BATCH, _RATE = 2000, 256, 1e-3  # of a probe: gradient steps, batch size, learning rate
_BLOCK, _LEAST_BLOCKS, _RESAMPLES = 50, 10, 1000  # of the block bootstrap
_LEAST = 40  # smallest number of steps that can be analysed


class Gain(NamedTuple):
    """A mean decrease of the loss over paired steps, in nats.

    Attributes:
        mean: Mean decrease of the loss.
        margin: 1.96 standard errors of the mean, from a block bootstrap.
    """

    mean: float
    margin: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.margin:.4f}"

    @property
    def is_chance(self) -> bool:
        """Whether the 95 % interval of the gain reaches down to 0, so that it may be chance."""
        return self.mean <= self.margin


def paired_gain(of_one: Float[np.ndarray, " steps"], of_other: Float[np.ndarray, " steps"]) -> Gain:
    """Return the mean of `of_one - of_other` with its margin.

    Neighbouring steps are not independent. So the standard error is that of a circular block bootstrap
    (Politis and Romano 1992) with blocks of 50 steps, or of a tenth of the steps if that is less.

    Args:
        of_one: Loss of the baseline at each step, in nats; at least two steps.
        of_other: Loss of the other candidate at the same steps, in nats.
    """
    less = np.asarray(of_one - of_other, np.float64)
    steps = len(less)
    size = max(1, min(_BLOCK, steps // _LEAST_BLOCKS))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([less, less[: size - 1]]))])
    of_blocks = sums[size:] - sums[:-size]  # the sum of the block that begins at each step
    starts = np.random.default_rng(0).integers(steps, size=(_RESAMPLES, -(-steps // size)))
    means = of_blocks[starts].mean(axis=1) / size
    return Gain(float(less.mean()), float(1.96 * means.std(ddof=1)))


@dataclasses.dataclass(frozen=True)
class OracleLosses:
    """Mean losses of different ways to choose k, in nats, over the last 30 % of the steps.

    Constants and probes are fitted on the first 70 % of the steps. The baseline of `gain` and `own` ignores
    the input: it is either `fixed` or `random`, whichever has the lower loss on the first 70 %.

    Attributes:
        count: Number of steps in the last 30 %.
        taken: Loss of the agent's choices.
        random: Expected loss of uniformly random choices.
        constant: Loss of each k, chosen at all steps.
        fixed: The number, from 1, of the constant choice with the lowest loss on the first 70 % (not a loss).
        hindsight: Loss of the best choice at each step.
        averaged: Loss of the average of the K predicted probabilities.
        probes: Loss of each probe, by the name of its features. A probe is an MLP that is trained on the
            first 70 % to choose k.
        gain: Decrease of the loss from the baseline to each probe, by the name of its features.
        own: Decrease of the loss from the baseline to the agent.
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
    """Compare ways to choose among K states, given the loss of every choice at every step.

    Args:
        losses: Loss of each choice, in nats, (steps, K).
        taken: Choice of the agent at each step, in 1..K.
        seen: Features that a probe observes, by name, each (steps, features). One probe is trained for each.
        units: Number of hidden units of a probe.
        seed: Seed of the probes' initial weights and of the order of steps.

    Raises:
        UserError: There are too few steps.
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
    # The baseline is selected on the steps on which the constant was selected.
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
    """Train a probe and return its most probable choices, from 0, at other steps.

    The probe is an MLP π(k | features). It minimizes the exact expected loss Σ_k π(k) loss(k). The last 15 %
    of the fitting steps are held out, and the epoch with the lowest loss on them is used.

    Args:
        features: Features at each step; the first `len(losses)` steps are used.
        losses: Loss of each choice at the fitting steps.
        others: Features at the steps to predict.
        units: Number of hidden units.
        seed: Seed of the initial weights and of the order of steps.
    """
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
