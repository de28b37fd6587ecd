"""Compare the agent's choices with random, constant, best and learned ones (probes)."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from dynskip_jax.analysis.statistics import Gain, paired_gain
from dynskip_jax.errors import UserError

_FITTED = 0.7  # fraction of the steps used to fit constants and probes; results are from the rest
_HELD_OUT = 0.15  # fraction of the fitting steps held out to select the probe's epoch
_UNITS = 50  # hidden ones of a probe
_UPDATES = 2000  # gradient steps of a probe
_BATCH = 256
_RATE = 1e-3
_LEAST = 40  # smallest number of steps that can be analysed


@dataclasses.dataclass(frozen=True)
class OracleLosses:
    """Mean losses of different ways to choose k, in nats, over the last 30 % of the steps.

    Constants and probes are fitted on the first 70 % of the steps. The baseline of `gain` and `own`
    ignores the input: the best constant or random choices, whichever has the lower loss on the
    first 70 %.
    """

    count: int  # steps in the last 30 %
    taken: float  # of the agent's choices
    random: float  # expected, of uniformly random choices
    constant: tuple[float, ...]  # of each k, chosen at all steps
    fixed: int  # number, from 1, of the best constant choice on the first 70 %
    hindsight: float  # of the best choice at each step
    averaged: float  # of the average of the K predicted probabilities
    probes: Mapping[str, float]  # of each probe, by the name of its features
    gain: Mapping[str, Gain]  # decrease of the loss from the baseline to each probe
    own: Gain  # decrease of the loss from the baseline to the agent

    def verdict(self) -> str:
        """Return a sentence: whether the agent or a probe beats choices that ignore the input."""
        name, gain = max(self.gain.items(), key=lambda pair: pair[1].mean)
        probe = f"a probe that sees {name}"
        over = "nats (95 %) over choices that look at nothing"
        own = self.own
        blind = min(*self.constant, self.random)
        if gain.is_chance and own.is_chance:
            return f"Nothing to learn was found: {probe} gains {gain} {over}, the agent {own}."
        if gain.is_chance:
            return f"The agent has learnt something: it gains {own} {over}, {probe} {gain}."
        share = f"{gain.mean / (blind - self.hindsight):.0%} of what hindsight gains"
        learnable = f"There is something to learn: {probe} gains {gain} {over}, {share}"
        return f"{learnable}; the agent gains {own}."


def oracle_losses(
    losses: Float[np.ndarray, "steps K"],
    taken: Int[np.ndarray, " steps"],
    seen: Mapping[str, Float[np.ndarray, "steps features"]],
) -> OracleLosses:
    """Compare ways to choose among K states, given the loss of every choice at every step.

    `taken` has the agent's choices, 1..K. One probe is trained for each of the features in `seen`.
    """
    steps = len(losses)
    if steps < _LEAST:
        raise UserError(f"{steps} choices are too few: give more text, at least {_LEAST} steps")
    fitted = int(_FITTED * steps)
    rest = losses[fitted:]
    fixed = int(losses[:fitted].mean(axis=0).argmin())
    of_random = rest.mean(axis=1)
    # The baseline is selected on the steps on which the constant was selected.
    bar = of_random
    if losses[:fitted, fixed].mean() <= losses[:fitted].mean():
        bar = rest[:, fixed]
    of_probes = {}
    for name, features in seen.items():
        chosen = _probe(features, losses[:fitted], features[fitted:])
        of_probes[name] = np.take_along_axis(rest, chosen[:, None], axis=1)[:, 0]
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
        probes={name: float(loss.mean()) for name, loss in of_probes.items()},
        gain={name: paired_gain(bar, loss) for name, loss in of_probes.items()},
        own=paired_gain(bar, of_agent),
    )


def _probe(
    features: Float[np.ndarray, "steps features"],
    losses: Float[np.ndarray, "fitted K"],
    others: Float[np.ndarray, "rest features"],
) -> Int[np.ndarray, " rest"]:
    """Train an MLP π(k | features), and return its most probable choices, from 0, at other steps.

    It minimizes the exact expected loss Σ_k π(k) loss(k). The last 15 % of the fitting steps are
    held out, and the epoch with the lowest loss on them is used.
    """
    features = np.asarray(features[: len(losses)], np.float32)
    middle = features.mean(axis=0)
    scale = features.std(axis=0) + 1e-6
    x, rest = ((values - middle) / scale for values in (features, others))
    costs = np.asarray(losses - losses.mean(axis=1, keepdims=True), np.float32)
    train = len(x) - max(1, int(_HELD_OUT * len(x)))
    one, two = jax.random.split(jax.random.key(0))
    size = x.shape[1]
    K = losses.shape[1]
    w_in = jax.random.normal(one, (size, _UNITS)) / np.sqrt(size)
    params = (
        w_in,
        jnp.zeros((1, _UNITS)),
        jax.random.normal(two, (_UNITS, K)) * 0.01,
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
    batch = min(_BATCH, train)
    state = optimizer.init(params)
    kept = (np.inf, params)
    order = np.random.default_rng(0)
    for _ in range(-(-_UPDATES * batch // (train // batch * batch))):
        rows = order.permutation(train)[: train // batch * batch].reshape(-1, batch)
        params, state = epoch(params, state, x[rows], costs[rows])
        chosen = np.asarray(best_of(params, x[train:]))
        cost = float(np.take_along_axis(costs[train:], chosen[:, None], axis=1).mean())
        kept = min(kept, (cost, params), key=lambda pair: pair[0])
    return np.asarray(best_of(kept[1], rest))
