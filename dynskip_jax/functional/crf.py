"""Linear-chain conditional random field (Lafferty et al. 2001): sums, scores and best tag sequences, in logs.

A tag sequence y of length T has the score

    s(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_{t>1} transitions[y_{t-1}, y_t] + end[y_T],

and the probability exp(s(y)) / Z, where Z is the sum of exp(s) over all tag sequences. A row's steps past its
length count for nothing, whatever they hold; the empty sequence has the score 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.checks import check_range, check_whole_numbers, known_values, valid_lengths
from dynskip_jax.functional.sequence import flip_sequences, last_valid, length_mask, where_each

# What a forbidden transition scores. Its exponential is 0, as that of -inf would be; but where all ways to a
# tag are forbidden, the gradient of a sum of exp(-inf) is 0/0.
FORBIDDEN = -1e30


class CRFParams(NamedTuple):
    """What a linear-chain CRF scores beside the emissions.

    Attributes:
        transitions: of tag i being followed by tag j, at [i, j], (tags, tags).
        start: of the first tag, (tags,).
        end: of the last tag, (tags,).
    """

    transitions: Float[Array, "tags tags"]
    start: Float[Array, " tags"]
    end: Float[Array, " tags"]


@dataclasses.dataclass(frozen=True)
class CRFMasks:
    """Which tags may follow each other, come first and come last; hashable, hence static in a module.

    Attributes:
        transitions: rows of (tags, tags).
        start: (tags,).
        end: (tags,).
    """

    transitions: tuple[tuple[bool, ...], ...]
    start: tuple[bool, ...]
    end: tuple[bool, ...]

    @classmethod
    def of(cls, transitions: Any, start: Any, end: Any) -> "CRFMasks":
        """Return the masks of these arrays."""
        rows = tuple(tuple(map(bool, row)) for row in np.asarray(transitions))
        return cls(rows, tuple(map(bool, np.asarray(start))), tuple(map(bool, np.asarray(end))))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the masks as `crf_constrain` takes them."""
        count = len(self.start)
        return (
            np.array(self.transitions, bool).reshape(count, count),
            np.array(self.start),
            np.array(self.end),
        )


def crf_constrain(
    params: CRFParams,
    transitions: Bool[Array, "tags tags"] | Bool[np.ndarray, "tags tags"],
    start: Bool[Array, " tags"] | Bool[np.ndarray, " tags"],
    end: Bool[Array, " tags"] | Bool[np.ndarray, " tags"],
) -> CRFParams:
    """Returns the parameters with `FORBIDDEN` wherever a mask is False; no gradient reaches those places.

    With them a sequence that breaks a rule has probability 0, and is not decoded unless each one breaks some.
    The log-likelihood of such a sequence is about -1e30: finite, so that gradients are, but of no use.

    Args:
        params: those that are trained.
        transitions: which tags may follow each tag; see `data.tag_schemes.allowed_transitions`, whose answer
            unpacks into these arguments.
        start: which tags may come first.
        end: which tags may come last.
    """
    masks = CRFParams(transitions, start, end)

    def constrain(score, allowed):
        return jnp.where(allowed, score, max(FORBIDDEN, float(jnp.finfo(score.dtype).min)))

    return jax.tree.map(constrain, params, masks)


def crf_log_partition(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, " batch"]:
    """log Z, the log of the sum of exp(s(y)) over all tag sequences of each row.

    Its gradient with respect to the emissions is the probability of each tag at each step.

    Args:
        params: the scores of transitions, first and last tags.
        emissions: the score of each tag at each step; finite up to each row's length.
        seq_lengths: of each row, from 0 to time; time when None.

    Returns:
        (batch,), in nats; 0 for a row of length 0.
    """
    params, emissions, seq_lengths = _prepared(params, emissions, seq_lengths)
    last, _ = _prefixes(params, emissions, seq_lengths, jax.nn.logsumexp)
    log_z = jax.nn.logsumexp(last + params.end[None], axis=-1)
    return jnp.where(seq_lengths > 0, log_z, 0)


def crf_score(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    tags: Int[Array, "batch time"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, " batch"]:
    """s(y), the score of one tag sequence of each row.

    Args:
        params: the scores of transitions, first and last tags.
        emissions: the score of each tag at each step.
        tags: y; past each row's length anything.
        seq_lengths: of each row, from 0 to time; time when None.

    Returns:
        (batch,); 0 for a row of length 0.
    """
    tags = _checked_tags(tags, params, emissions, seq_lengths)
    params, emissions, seq_lengths = _prepared(params, emissions, seq_lengths)
    valid = length_mask(seq_lengths, emissions.shape[1])
    tags = jnp.where(valid, tags, 0)
    emitted = jnp.take_along_axis(emissions, tags[:, :, None], axis=-1)[:, :, 0]
    followed = params.transitions[tags[:, :-1], tags[:, 1:]]
    ends = params.start[tags[:, 0]] + params.end[last_valid(tags, jnp.maximum(seq_lengths, 1))]
    score = jnp.sum(jnp.where(valid, emitted, 0), axis=-1)
    score += jnp.sum(jnp.where(valid[:, 1:], followed, 0), axis=-1)
    return score + jnp.where(seq_lengths > 0, ends, 0)


def crf_log_likelihood(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    tags: Int[Array, "batch time"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, " batch"]:
    """log p(y) = s(y) - log Z of one tag sequence of each row.

    Args:
        params: the scores of transitions, first and last tags.
        emissions: the score of each tag at each step; finite up to each row's length.
        tags: y; past each row's length anything.
        seq_lengths: of each row, from 0 to time; time when None.

    Returns:
        (batch,), in nats; 0 for a row of length 0.
    """
    tags = _checked_tags(tags, params, emissions, seq_lengths)
    params, emissions, seq_lengths = _prepared(params, emissions, seq_lengths)
    emissions = _centred(emissions)
    score = crf_score(params, emissions, tags, seq_lengths)
    return score - crf_log_partition(params, emissions, seq_lengths)


def crf_marginals(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, "batch time tags"]:
    """log p(y_t = k), of each tag at each step, by forward and backward sums.

    Args:
        params: the scores of transitions, first and last tags.
        emissions: the score of each tag at each step; finite up to each row's length.
        seq_lengths: of each row, from 0 to time; time when None.

    Returns:
        (batch, time, tags), in nats; 0 past each row's length. A tag that the constraints rule out at a step
        has about `FORBIDDEN`, whose exponential is 0.
    """
    params, scores, seq_lengths = _prepared(params, emissions, seq_lengths)
    scores = _centred(scores)
    _, prefixes = _prefixes(params, scores, seq_lengths, jax.nn.logsumexp)
    # Suffixes are the prefixes of the reversed sequence.
    reverse = CRFParams(params.transitions.T, params.end, params.start)
    flipped = flip_sequences(scores, seq_lengths)
    _, suffixes = _prefixes(reverse, flipped, seq_lengths, jax.nn.logsumexp)
    joint = prefixes + flip_sequences(suffixes, seq_lengths) - scores
    # Each step's sum is log Z; its own one rather than one for all leaves no rounding in the sum over tags.
    log_probs = jax.nn.log_softmax(joint, axis=-1)
    log_probs = where_each(length_mask(seq_lengths, scores.shape[1]), log_probs, 0)
    return log_probs[:, : emissions.shape[1]]


def crf_decode(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> tuple[Int[Array, "batch time"], Float[Array, " batch"]]:
    """The likeliest tag sequence of each row (Viterbi).

    Args:
        params: the scores of transitions, first and last tags.
        emissions: the score of each tag at each step; finite up to each row's length.
        seq_lengths: of each row, from 0 to time; time when None.

    Returns:
        The tags, int32, 0 past each row's length; and their score s(y), 0 for a row of length 0. Of several
        best sequences one is returned, the same one each time.
    """
    params, scores, seq_lengths = _prepared(params, emissions, seq_lengths)
    valid = length_mask(seq_lengths, scores.shape[1])
    best, prefixes = _prefixes(params, scores, seq_lengths, jnp.max)
    best += params.end[None]

    def go_back(tag, inputs):
        # From which tag the best way came is asked of the tags on the way alone, not of all on the way forth.
        prefix, continued = inputs
        before = jnp.argmax(prefix + params.transitions.T[tag], axis=-1).astype(jnp.int32)
        tag = jnp.where(continued, before, tag)
        return tag, tag

    last = jnp.argmax(best, axis=-1).astype(jnp.int32)
    inputs = jnp.moveaxis(prefixes, 1, 0), _of_next_step(valid).T
    _, tags = jax.lax.scan(go_back, last, inputs, reverse=True)
    tags = jnp.where(valid, tags.T, 0)[:, : emissions.shape[1]]
    return tags, jnp.where(seq_lengths > 0, jnp.max(best, axis=-1), 0)


def _prepared(
    params: CRFParams, emissions: Float[Array, "batch time tags"], seq_lengths: Int[Array, " batch"] | None
) -> tuple[CRFParams, Float[Array, "batch steps tags"], Int[Array, " batch"]]:
    """Return the arguments in one dtype, float32 at least, with emissions 0 at padding.

    Rows of no steps become rows of one step and length 0, so that every sequence has a first step.

    Raises:
        UserError: shapes do not fit, or a known length is out of range.
    """
    n = _check_emissions(params, emissions)
    batch, time = emissions.shape[:2]
    seq_lengths = jnp.full(batch, time, jnp.int32) if seq_lengths is None else seq_lengths
    check_whole_numbers("seq_lengths", seq_lengths, (batch,), "(batch,)")
    seq_lengths = valid_lengths(seq_lengths, time)
    dtype = jnp.result_type(emissions, *params, jnp.float32)
    if time == 0:
        emissions = jnp.zeros((batch, 1, n), dtype)
    emissions = where_each(length_mask(seq_lengths, emissions.shape[1]), emissions, 0).astype(dtype)
    return CRFParams(*(score.astype(dtype) for score in params)), emissions, seq_lengths


def _check_emissions(params: CRFParams, emissions: Float[Array, "batch time tags"]) -> int:
    """Return the number of tags; raise a `UserError` where emissions and parameters do not fit."""
    if jnp.ndim(emissions) != 3 or not jnp.issubdtype(jnp.result_type(emissions), jnp.floating):
        raise UserError(f"expected emissions of shape (batch, time, tags), got {described(emissions)}")
    n = emissions.shape[-1]
    for name, score, shape in zip(CRFParams._fields, params, ((n, n), (n,), (n,)), strict=True):
        if jnp.shape(score) != shape:
            raise UserError(
                f"expected params.{name} of shape {shape} for {n} tags, got {described(score)}: "
                "emissions and parameters are of different tag sets"
            )
    return n


def _checked_tags(
    tags: Int[Array, "batch time"],
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None,
) -> Int[Array, "batch steps"]:
    """Return the tags of the steps that `_prepared` returns; traced tags out of range count as its ends.

    Raises:
        UserError: the tags are of another batch or number of steps, or a known one within its row's length
            is none of the tags.
    """
    n = _check_emissions(params, emissions)
    batch, time = emissions.shape[:2]
    check_whole_numbers("tags", tags, (batch, time), "(batch, time)")
    if seq_lengths is not None:
        check_whole_numbers("seq_lengths", seq_lengths, (batch,), "(batch,)")
    known, ends = known_values(tags), None if seq_lengths is None else known_values(seq_lengths)
    if known is not None and (seq_lengths is None or ends is not None):
        inside = np.ones_like(known, bool) if ends is None else np.arange(time) < ends[:, None]
        check_range("tags", known[inside], 0, n - 1)
    return jnp.zeros((batch, 1), jnp.int32) if time == 0 else jnp.clip(tags, 0, n - 1)


def _centred(emissions: Float[Array, "batch time tags"]) -> Float[Array, "batch time tags"]:
    """The emissions less what all tags of a step have in common, which changes no probability.

    Sums over the steps are small then, and so is what a difference of two of them loses to rounding: a
    hundredth where the emissions are sure of their tags.
    """
    return emissions - jax.lax.stop_gradient(jnp.max(emissions, axis=-1, keepdims=True))


def _prefixes(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"],
    combine: Callable[..., Array],
) -> tuple[Float[Array, "batch tags"], Float[Array, "batch time tags"]]:
    """The scores of all beginnings y_1 .. y_t that end in each tag, `end` left out, combined into one.

    Args:
        params: the scores of transitions, first and last tags.
        emissions: the score of each tag at each step, finite.
        seq_lengths: of each row.
        combine: `jax.nn.logsumexp` for the sum of their exponentials, in logs; `jnp.max` for the best one.

    Returns:
        That at each row's last step, and at each step; past a row's length the last one again.
    """

    def extend(prefix, inputs):
        emission, inside = inputs
        extended = emission + combine(prefix[:, :, None] + params.transitions[None], axis=1)
        return where_each(inside, extended, prefix), prefix

    first = params.start[None] + emissions[:, 0]
    valid = length_mask(seq_lengths, emissions.shape[1])
    inputs = jnp.moveaxis(_of_next_step(emissions), 1, 0), _of_next_step(valid).T
    last, prefixes = jax.lax.scan(extend, first, inputs)
    return last, jnp.moveaxis(prefixes, 0, 1)


def _of_next_step(x: Shaped[Array, "batch time *features"]) -> Shaped[Array, "batch time *features"]:
    """Return x(t+1) at each step t, and zeros at the last step.

    With it, scans have as many iterations as there are steps: JAX cannot export a scan of a symbolic number
    of steps less one.
    """
    return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], axis=1)
