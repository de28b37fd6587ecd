"""Read a text with a trained model: choices, their probabilities, continuations, gradients."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.relaxation import policy_temperature
from dynskip_jax.nn import SkipCell

if TYPE_CHECKING:
    from dynskip_jax.models import LanguageModel


@dataclasses.dataclass(frozen=True)
class Reading:
    """A model's prediction for a text, and its choices at each word."""

    words: Sequence[str]  # as the model reads them
    # `connections` of the top layer that reads from the start; 0 for no choice.
    skips: Sequence[int]
    # Of each prediction, or of each word; NaN where there is none.
    probabilities: Sequence[float] = ()
    prediction: str = ""  # as one line
    unknown: Sequence[str] = ()  # words of the text that are not in the vocabulary
    # `distribution` of that layer; None if it has none.
    weights: Float[np.ndarray, "words K"] | None = None
    # The same of the top layer that reads from the end, where k leads to word t + k; None without
    # such a layer, or without choices to show.
    backward: Sequence[int] | None = None
    backward_weights: Float[np.ndarray, "words K"] | None = None
    # Whether a weighted mean of all K states enters, instead of one chosen state.
    is_attention: bool = False

    def directions(self) -> dict[str, "Reading"]:
        """Return the reading of each direction; the backward one has its words in reverse order."""
        if self.backward is None:
            return {"": self}
        weights = self.backward_weights
        backward = dataclasses.replace(
            self,
            words=self.words[::-1],
            skips=self.backward[::-1],
            probabilities=self.probabilities[::-1],
            weights=None if weights is None else weights[::-1],
        )
        return {"forward": self, "backward": backward}

    def reached(self, t: int, least: float = 0.0) -> list[tuple[int, float]]:
        """Return the skips at word t as pairs (k, weight); attention's weigh at least `least`."""
        if self.is_attention and self.weights is not None:
            return [(k, float(w)) for k, w in enumerate(self.weights[t], 1) if w >= least]
        if self.skips[t] == 0:
            return []
        return [(self.skips[t], 1.0)]


def connections(decision: F.Decision, *, reverse: bool = False) -> Int[np.ndarray, " time"]:
    """Return k at each word t, such that State(t-k), or State(t+k) in reverse, entered at word t.

    If the time skip leaves words out, k is the distance to the last word that was read, or to the
    position before the text, and 0 at words that are not read. `decision` is that of a sequence,
    each leaf (time,).
    """
    if decision.update is None:
        return np.asarray(decision.action)
    if reverse:
        return connections(jax.tree.map(lambda leaf: leaf[::-1], decision))[::-1]
    read = np.asarray(decision.update) > 0.5
    steps = np.arange(len(read))
    last = np.maximum.accumulate(np.where(read, steps, -1))
    before = np.concatenate([[-1], last[:-1]])
    return np.where(read, steps - before, 0)


def distribution(
    cell: SkipCell,
    observation: tuple[Float[Array, "time in"], Float[Array, "time hidden"]],
    policy: F.Policy = F.Policy("greedy"),  # noqa: B008 (immutable)
    *,
    reverse: bool = False,
) -> Float[Array, "time K"] | None:
    """Return the probability (of an agent) or weight (of attention) of each k at each step.

    `observation` is an entry of `observations` of `SkipLayers`, x(t) and h(t-1), of one whole
    sequence.
    """
    skip = cell.skip
    if not (skip.has_agent and skip.has_distribution):
        return None
    x, before = observation
    if reverse:
        x = x[::-1]
        before = before[::-1]
    # Before the sequence, all K states are the initial one.
    history = jnp.concatenate([jnp.repeat(before[:1], skip.max_skip, axis=0), before[1:]])
    seen = F.observations_in(history[None], skip.observation_kind, skip.max_skip, len(x))
    mask = None if policy.mask is None else jnp.asarray(policy.mask)
    temperature = policy_temperature(skip.mode_of(policy.mode), policy.temperature)
    also_seen = {}
    if skip.observes_inputs:
        earlier = jnp.zeros((1, skip.max_skip - 1, x.shape[-1]), x.dtype)
        also_seen["followed"] = F.followed_in(earlier, x[None])
    given = cell.params().skip, x[None], jnp.arange(len(x))[None]
    weights = jnp.exp(skip.log_distribution(*given, seen, mask, temperature, **also_seen))[0]
    if skip.forgets_carried:
        weights = weights.at[0].set(jax.nn.one_hot(0, skip.max_skip, dtype=weights.dtype))
    if reverse:
        return weights[::-1]
    return weights


def generate(
    model: "LanguageModel",
    prompt: Int[Array, " time"],
    num_tokens: int,
    key: Key[Array, ""],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    policy: F.Policy = F.Policy("sample"),  # noqa: B008 (immutable)
    without: Sequence[int] = (),
) -> Int[Array, " num_tokens"]:
    """Sample the continuation of a prompt of at least one token, such as `<eos>`.

    `temperature` divides the logits: below 1, likely words become likelier. Tokens of `without`
    are never sampled; the probabilities of the others are divided by their sum.
    """
    left_out = np.array(without, np.int32)
    carry_key, word_key = jax.random.split(key)
    read = partial(model, policy=policy, deterministic=True, return_carry=True)
    carry, output = read(prompt[None], rngs=carry_key)

    def step(state, key):
        carry, logits = state
        allowed = logits.at[left_out].set(-jnp.inf)
        token = jax.random.categorical(key, allowed / temperature)
        carry, output = read(token[None, None], initial_carry=carry)
        return (carry, output.logits[0, -1]), token

    keys = jax.random.split(word_key, num_tokens)
    return lax.scan(step, (carry, output.logits[0, -1]), keys)[1]


def state_gradient_norms(
    params: F.LayerParams,
    carry: F.SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: F.Recurrence,
    last_loss: Callable[[Float[Array, "batch hidden"]], Float[Array, " batch"]],
    policy: F.Policy = F.Policy("greedy"),  # noqa: B008 (immutable)
) -> Float[Array, "batch time"]:
    """Return ‖∂L_T/∂h_t‖ for each step t of each sequence (Gui et al. 2019, Figure 4).

    It is the norm of the total derivative, along every path from h_t to L_T. As in training, no
    gradient flows through the decisions themselves. `x` are inputs of the layer, of which all
    sequences have the same length T; `last_loss` is a function from h_T to L_T of each sequence.
    """
    if recurrence.depth_skip is not None:
        raise UserError("gradient norms are those of a layer without a skip over depth")

    def unrolled(nudges: Float[Array, "time batch hidden"]) -> Float[Array, ""]:
        """Return the sum of all L_T, with `nudges` added to new states before their use."""

        def step(carry, given):
            inputs, nudge = given
            after, _ = F.recurrent_step(params, carry, inputs, recurrence, policy)
            newest = after.state
            return after.with_newest(newest._replace(h=newest.h + nudge)), None

        inputs = F.project_inputs(params, jnp.swapaxes(x, 0, 1), recurrence)
        last, _ = lax.scan(step, carry, (inputs, nudges))
        return last_loss(last.state.h).sum()

    nudges = jnp.zeros((x.shape[1], x.shape[0], carry.state[0].shape[-1]), x.dtype)
    return jnp.linalg.norm(jax.grad(unrolled)(nudges), axis=-1).T
