"""Linear-chain conditional random field (Lafferty et al. 2001): likelihood, marginals and decoding.

A tag sequence y of length T has the score

    s(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_{t>1} transitions[y_{t-1}, y_t] + end[y_T],

and the probability exp(s(y)) / Z, where Z is the sum of exp(s) over all tag sequences. All results
are in log space. Steps past a row's length are ignored, whatever their values. The empty sequence
has probability 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.checks import (
    check_range,
    check_whole_numbers,
    known_values,
    valid_lengths,
)
from dynskip_jax.functional.product import wider
from dynskip_jax.functional.sequence import flip_sequences, last_valid, length_mask, where_each
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.sharding import explicit_spec, on_one_mesh

# Score of a forbidden transition. Its exponential is 0. Unlike -inf, it keeps gradients finite
# where all transitions to a tag are forbidden.
FORBIDDEN = -1e30


@register_for_export
class CRFParams(NamedTuple):
    """Parameters of a linear-chain CRF."""

    transitions: Float[Array, "tags tags"]  # score of tag j after tag i, at [i, j]
    start: Float[Array, " tags"]  # score of each tag as the first one
    end: Float[Array, " tags"]  # score of each tag as the last one


def crf_constrain(
    params: CRFParams,
    transitions: Bool[Array | np.ndarray, "tags tags"],
    start: Bool[Array | np.ndarray, " tags"],
    end: Bool[Array | np.ndarray, " tags"],
) -> CRFParams:
    """Return the parameters with `FORBIDDEN` where a mask is False. These entries get no gradient.

    A sequence with a forbidden entry then has probability 0. It is decoded only if every sequence
    has one. Its log-likelihood is about -1e30 instead of -inf, which keeps gradients finite. The
    masks have the axes of `CRFParams`; `data.tag_schemes.allowed_transitions` returns all three.
    """

    def constrain(score, allowed):
        return jnp.where(allowed, score, max(FORBIDDEN, float(jnp.finfo(score.dtype).min)))

    return jax.tree.map(constrain, params, CRFParams(transitions, start, end))


def crf_log_likelihood(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    tags: Int[Array, "batch time"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, " batch"]:
    """Return log p(y) = s(y) - log Z of one tag sequence of each row, in nats.

    Args:
        emissions: Score of each tag at each step, finite up to each row's length.
        tags: Tag sequence y; ignored past each row's length. Traced tags are clipped to the range
            of tags.
        seq_lengths: True lengths, 0 to time; None if all rows have `time` steps.
    """
    rows = _prepared(params, emissions, seq_lengths, tags)
    emitted = jnp.take_along_axis(rows.emissions, rows.tags[:, :, None], axis=-1).sum(axis=(1, 2))
    followed = _entries(rows.params.transitions, rows.tags[:, :-1], rows.tags[:, 1:])
    score = emitted + jnp.where(rows.valid[:, 1:], followed, 0).sum(axis=-1)
    first = _entries(rows.params.start, rows.tags[:, 0])
    last = _entries(rows.params.end, last_valid(rows.tags, rows.seq_lengths))
    score += first + last
    prefix, _ = _prefixes(rows, _log_sum)
    log_z = jax.nn.logsumexp(prefix + rows.params.end[None], axis=-1)
    return jnp.where(rows.seq_lengths > 0, score - log_z, 0)


def crf_marginals(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, "batch time tags"]:
    """Return log p(y_t = k) of each tag k at each step t, in nats (forward-backward algorithm).

    It is 0 past each row's length, and about `FORBIDDEN` for a tag that the constraints rule out.
    Arguments are those of `crf_log_likelihood`.
    """
    rows = _prepared(params, emissions, seq_lengths)
    _, prefixes = _prefixes(rows, _log_sum)
    # The suffixes of a sequence are the prefixes of the reversed sequence.
    reverse = CRFParams(rows.params.transitions.T, rows.params.end, rows.params.start)
    flipped = rows._replace(
        params=reverse, emissions=flip_sequences(rows.emissions, rows.seq_lengths)
    )
    _, suffixes = _prefixes(flipped, _log_sum)
    joint = prefixes + flip_sequences(suffixes, rows.seq_lengths) - rows.emissions
    # The logsumexp over tags is log Z at every step. Normalising each step on its own avoids
    # rounding errors.
    log_probs = where_each(rows.valid, jax.nn.log_softmax(joint, axis=-1), 0)
    return log_probs[:, : emissions.shape[1]]


def crf_decode(
    params: CRFParams,
    emissions: Float[Array, "batch time tags"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Int[Array, "batch time"]:
    """Return the most probable tag sequence of each row (Viterbi algorithm); 0 at padding.

    Ties are broken deterministically. Arguments are those of `crf_log_likelihood`.
    """
    rows = _prepared(params, emissions, seq_lengths)
    best, prefixes = _prefixes(rows, _largest)

    def go_back(tag, inputs):
        # Computing the best previous tag here, only for tags on the path, is cheaper than storing
        # it for all.
        prefix, continued = inputs
        before = prefix + _entries(rows.params.transitions.T, tag)
        before = jnp.argmax(before, axis=-1).astype(jnp.int32)
        tag = jnp.where(continued, before, tag)
        return tag, tag

    last = jnp.argmax(best + rows.params.end[None], axis=-1).astype(jnp.int32)
    inputs = jnp.moveaxis(prefixes, 1, 0), _next_step(rows.valid).T
    _, tags = jax.lax.scan(go_back, last, inputs, reverse=True)
    return jnp.where(rows.valid, tags.T, 0)[:, : emissions.shape[1]]


class _Rows(NamedTuple):
    """Checked arguments in one dtype, float32 or wider, with at least one step."""

    params: CRFParams
    emissions: Float[Array, "batch steps tags"]  # minus the maximum of each step; 0 at padding
    seq_lengths: Int[Array, " batch"]
    valid: Bool[Array, "batch steps"]
    tags: Any  # (batch, steps), 0 at padding; None without tags


def _prepared(params: CRFParams, emissions: Any, seq_lengths: Any, tags: Any = None) -> _Rows:
    """Check the arguments and return them as `_Rows`."""
    if jnp.ndim(emissions) != 3 or not jnp.issubdtype(jnp.result_type(emissions), jnp.floating):
        raise UserError(
            f"expected emissions of shape (batch, time, tags), got {described(emissions)}"
        )
    batch, time, n = emissions.shape
    for name, score, shape in zip(CRFParams._fields, params, ((n, n), (n,), (n,)), strict=True):
        if jnp.shape(score) != shape:
            given = f"params.{name} of shape {shape} for {n} tags, got {described(score)}"
            raise UserError(f"expected {given}: emissions and parameters are of different tag sets")
    if seq_lengths is None:
        seq_lengths = jnp.full(batch, time, jnp.int32)
    seq_lengths = valid_lengths(seq_lengths, time, (batch,))
    if tags is not None:
        check_whole_numbers("tags", tags, (batch, time), "(batch, time)")
        known = known_values(tags)
        ends = known_values(seq_lengths)
        if known is not None and ends is not None:
            check_range("tags", known[np.arange(time) < ends[:, None]], 0, n - 1)
    # The first step must exist, so rows without steps get one of padding.
    if time == 0:
        emissions = jnp.zeros((batch, 1, n), emissions.dtype)
        if tags is not None:
            tags = jnp.zeros((batch, 1), jnp.int32)
    valid = length_mask(seq_lengths, emissions.shape[1])
    if tags is not None:
        tags = jnp.where(valid, jnp.clip(tags, 0, n - 1), 0)
    dtype = wider(emissions.dtype, *(score.dtype for score in params), jnp.float32)
    emissions = where_each(valid, emissions, 0).astype(dtype)
    # This changes no probability. Sums over steps are then small, and so are their rounding errors.
    emissions -= jax.lax.stop_gradient(jnp.max(emissions, axis=-1, keepdims=True))
    # The gradient of a sum of terms that are all -inf is NaN.
    scores = CRFParams(*(jnp.maximum(score.astype(dtype), FORBIDDEN) for score in params))
    return _Rows(scores, emissions, seq_lengths, valid, tags)


def _prefixes(rows: _Rows, combine: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """Combine the scores, without `end`, of all prefixes y_1 .. y_t that end in each tag.

    `combine` is `_log_sum`, or `_largest` for the best prefix. Return the scores at each row's last
    step, (batch, tags), and at each step, (batch, steps, tags). Past a row's length they repeat
    those of its last.
    """

    def extend(prefix, inputs):
        emission, inside = inputs
        extended = emission + combine(prefix, rows.params.transitions)
        return where_each(inside, extended, prefix), prefix

    first = rows.params.start[None] + rows.emissions[:, 0]
    inputs = jnp.moveaxis(_next_step(rows.emissions), 1, 0), _next_step(rows.valid).T
    last, prefixes = jax.lax.scan(extend, first, inputs)
    return last, jnp.moveaxis(prefixes, 0, 1)


def _entries(
    scores: Float[Array, "tags ..."], *indices: Int[Array, "batch ..."]
) -> Float[Array, "batch ..."]:
    """Return entries of scores that all rows share, sharded as the rows of the indices."""
    spec = explicit_spec(indices[0])
    if spec is None:
        return scores[indices]
    # JAX does not infer this sharding, nor that of entries of an array on no mesh.
    scores, indices = on_one_mesh((scores, indices))
    rest = (None,) * (scores.ndim - len(indices))
    sharding = NamedSharding(jax.typeof(indices[0]).sharding.mesh, PartitionSpec(*spec, *rest))
    return scores.at[indices].get(out_sharding=sharding)


def _largest(prefix: Float[Array, "batch tags"], transitions: Array) -> Float[Array, "batch tags"]:
    return jnp.max(prefix[:, :, None] + transitions[None], axis=1)


def _log_sum(prefix: Float[Array, "batch tags"], transitions: Array) -> Float[Array, "batch tags"]:
    """Return log Σ_i exp(prefix_i + transitions_ij).

    It is a product of exponentials, which is several times faster than a sum for each pair of tags.
    Where the product loses terms to underflow, it is such a sum: where the best prefixes are
    followed by transitions that are forbidden, or far worse than others to the same tag.
    """
    shift = jax.lax.stop_gradient(prefix.max(axis=1, keepdims=True))
    shifts = jax.lax.stop_gradient(transitions.max(axis=0, keepdims=True))
    total = jnp.matmul(jnp.exp(prefix - shift), jnp.exp(transitions - shifts), precision="highest")
    # A lost term is below `tiny`: a rounding error of every total that is not small.
    is_small = total < jnp.finfo(total.dtype).tiny / jnp.finfo(total.dtype).eps
    log_total = jnp.log(jnp.where(is_small, 1, total)) + shift + shifts
    exact = jax.lax.cond(
        is_small.any(), _exact_log_sum, lambda prefix, _: prefix, prefix, transitions
    )
    return jnp.where(is_small, exact, log_total)


@jax.checkpoint  # otherwise every step would store an array of (batch, tags, tags)
def _exact_log_sum(
    prefix: Float[Array, "batch tags"], transitions: Array
) -> Float[Array, "batch tags"]:
    return jax.nn.logsumexp(prefix[:, :, None] + transitions[None], axis=1)


def _next_step(x: Shaped[Array, "batch time *features"]) -> Shaped[Array, "batch time *features"]:
    """Return x(t+1) at each step t, and zeros at the last.

    JAX cannot export a scan over `time` - 1 steps.
    """
    return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], axis=1)
