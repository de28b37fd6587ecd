"""Linear-chain conditional random field (Lafferty et al. 2001): likelihood, marginals and decoding.

A tag sequence y of length T has the score

    s(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_{t>1} transitions[y_{t-1}, y_t] + end[y_T],

and the probability exp(s(y)) / Z, where Z is the sum of exp(s) over all tag sequences. All results are in
log space. Steps past a row's length are ignored, whatever their values. The empty sequence has the score 0.
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

# Score of a forbidden transition. Its exponential is 0. Unlike -inf, it keeps gradients finite where all
# transitions to a tag are forbidden.
FORBIDDEN = -1e30


class CRFParams(NamedTuple):
    """Parameters of a linear-chain CRF.

    Attributes:
        transitions: Score of tag j after tag i, at [i, j], (tags, tags).
        start: Score of each tag as the first one, (tags,).
        end: Score of each tag as the last one, (tags,).
    """

    transitions: Float[Array, "tags tags"]
    start: Float[Array, " tags"]
    end: Float[Array, " tags"]


@dataclasses.dataclass(frozen=True)
class CRFMasks:
    """Masks of the tags that may follow each other, come first and come last.

    Hashable, hence a static argument under `jit`. See `crf_constrain`.

    Attributes:
        transitions: True where the tag of the column may follow the tag of the row; rows of (tags, tags).
        start: True for tags that may come first, (tags,).
        end: True for tags that may come last, (tags,).
    """

    transitions: tuple[tuple[bool, ...], ...]
    start: tuple[bool, ...]
    end: tuple[bool, ...]

    @classmethod
    def of(cls, transitions: Any, start: Any, end: Any) -> "CRFMasks":
        """Return the masks made from boolean arrays."""
        rows = tuple(tuple(map(bool, row)) for row in np.asarray(transitions))
        return cls(rows, tuple(map(bool, np.asarray(start))), tuple(map(bool, np.asarray(end))))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the masks as boolean arrays, in the order of the arguments of `crf_constrain`."""
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
    """Return the parameters with `FORBIDDEN` where a mask is False. These entries get no gradient.

    A sequence with a forbidden entry then has probability 0. It is decoded only if every sequence has one.
    Its log-likelihood is about -1e30 instead of -inf, which keeps gradients finite.

    Args:
        params: Trained parameters.
        transitions: True for tags (columns) that may follow a tag (row), (tags, tags). The result of
            `data.tag_schemes.allowed_transitions` unpacks into `transitions`, `start` and `end`.
        start: True for tags that may come first, (tags,).
        end: True for tags that may come last, (tags,).
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
    """Return log Z, the log of the sum of exp(s(y)) over all tag sequences of each row.

    Its gradient with respect to the emissions is the probability of each tag at each step.

    Args:
        params: Parameters of the CRF.
        emissions: Score of each tag at each step, finite up to each row's length.
        seq_lengths: True lengths, (batch,), 0 to time; None if all rows have `time` steps.

    Returns:
        log Z, (batch,), in nats; 0 for a row of length 0.
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
    """Return s(y), the score of one tag sequence of each row.

    Args:
        params: Parameters of the CRF.
        emissions: Score of each tag at each step.
        tags: Tag sequence y, (batch, time); ignored past each row's length.
        seq_lengths: True lengths, (batch,), 0 to time; None if all rows have `time` steps.

    Returns:
        s(y), (batch,); 0 for a row of length 0.
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
    """Return log p(y) = s(y) - log Z of one tag sequence of each row.

    Args:
        params: Parameters of the CRF.
        emissions: Score of each tag at each step, finite up to each row's length.
        tags: Tag sequence y, (batch, time); ignored past each row's length.
        seq_lengths: True lengths, (batch,), 0 to time; None if all rows have `time` steps.

    Returns:
        log p(y), (batch,), in nats; 0 for a row of length 0.
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
    """Return log p(y_t = k) of each tag k at each step t (forward-backward algorithm).

    Args:
        params: Parameters of the CRF.
        emissions: Score of each tag at each step, finite up to each row's length.
        seq_lengths: True lengths, (batch,), 0 to time; None if all rows have `time` steps.

    Returns:
        Log-marginals, (batch, time, tags), in nats; 0 past each row's length, and about `FORBIDDEN` for a tag
        that the constraints rule out.
    """
    params, scores, seq_lengths = _prepared(params, emissions, seq_lengths)
    scores = _centred(scores)
    _, prefixes = _prefixes(params, scores, seq_lengths, jax.nn.logsumexp)
    # The suffixes of a sequence are the prefixes of the reversed sequence.
    reverse = CRFParams(params.transitions.T, params.end, params.start)
    flipped = flip_sequences(scores, seq_lengths)
    _, suffixes = _prefixes(reverse, flipped, seq_lengths, jax.nn.logsumexp)
    joint = prefixes + flip_sequences(suffixes, seq_lengths) - scores
    # The logsumexp over tags is log Z at every step. Normalising each step on its own avoids rounding errors.
    log_probs = jax.nn.log_softmax(joint, axis=-1)
    log_probs = where_each(length_mask(seq_lengths, scores.shape[1]), log_probs, 0)
    return log_probs[:, : emissions.shape[1]]


def crf_decode(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> tuple[Int[Array, "batch time"], Float[Array, " batch"]]:
    """Return the most probable tag sequence of each row (Viterbi algorithm).

    Args:
        params: Parameters of the CRF.
        emissions: Score of each tag at each step, finite up to each row's length.
        seq_lengths: True lengths, (batch,), 0 to time; None if all rows have `time` steps.

    Returns:
        The tags, (batch, time), int32, 0 past each row's length; and their score s(y), (batch,), 0 for a row
        of length 0. Ties are broken deterministically.
    """
    params, scores, seq_lengths = _prepared(params, emissions, seq_lengths)
    valid = length_mask(seq_lengths, scores.shape[1])
    best, prefixes = _prefixes(params, scores, seq_lengths, jnp.max)
    best += params.end[None]

    def go_back(tag, inputs):
        # Computing the best previous tag here, only for tags on the path, is cheaper than storing it for all.
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
    """Check the arguments and return them in one dtype, float32 or wider, with emissions of 0 at padding.

    If `emissions` has no steps, the result has one step and lengths of 0, so that a first step always exists.
    Lengths of None become `time`.

    Raises:
        UserError: If shapes do not match, or a known length is out of range.
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
    """Return the number of tags; raise a `UserError` if the shapes of emissions and parameters differ."""
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
    """Check the tags and return one tag for each step that `_prepared` returns.

    Traced tags are clipped to the range of tags.

    Raises:
        UserError: If the shape is wrong, or a known tag within its row's length is out of range.
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
    """Return the emissions minus the maximum of each step, which changes no probability.

    Sums over steps are then small, and so are the rounding errors of differences between these sums.
    """
    return emissions - jax.lax.stop_gradient(jnp.max(emissions, axis=-1, keepdims=True))


def _prefixes(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"],
    combine: Callable[..., Array],
) -> tuple[Float[Array, "batch tags"], Float[Array, "batch time tags"]]:
    """Combine the scores, without `end`, of all prefixes y_1 .. y_t that end in each tag.

    Args:
        params: Parameters of the CRF.
        emissions: Score of each tag at each step, finite.
        seq_lengths: True lengths, (batch,).
        combine: `jax.nn.logsumexp` for the sum over prefixes, or `jnp.max` for the best prefix.

    Returns:
        The combined scores at each row's last step, (batch, tags), and at each step, (batch, time, tags).
        Steps past a row's length repeat the scores of its last step.
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

    With it, a scan has one iteration per step. JAX cannot export a scan over a symbolic number of steps minus
    one.
    """
    return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], axis=1)
