"""Check that functions refuse lengths out of range, or clip them to the range if they are
traced.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError

BATCH, TIME, TAGS = 2, 3, 4
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(BATCH, TIME, TAGS)), jnp.float32)
CRF = F.CRFParams(
    *(jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((TAGS, TAGS), (TAGS,), (TAGS,)))
)
LABELS = jnp.asarray(RNG.integers(TAGS, size=(BATCH, TIME)), jnp.int32)
LSTM = F.Recurrence()
WEIGHTS = LSTM.init(jax.random.key(0), TAGS, 2)


def unrolled(lengths):
    zeros = F.zero_state(LSTM.transition, (BATCH, 2))
    carry = F.initial_carry(jax.random.split(jax.random.key(1), BATCH), LSTM, zeros)
    return F.unroll(WEIGHTS, carry, X, LSTM, seq_lengths=lengths)[1].h


TAKE_LENGTHS = {
    "length_mask": lambda lengths: F.length_mask(lengths, TIME),
    "flip_sequences": lambda lengths: F.flip_sequences(X, lengths),
    "last_valid": lambda lengths: F.last_valid(X, lengths),
    "unroll": unrolled,
    "crf_log_likelihood": lambda lengths: F.crf_log_likelihood(CRF, X, LABELS, lengths),
    "crf_marginals": lambda lengths: F.crf_marginals(CRF, X, lengths),
    "crf_decode": lambda lengths: F.crf_decode(CRF, X, lengths),
}
REFUSED = [
    *(
        jnp.array([TIME + 1, 1]),
        jnp.array([TIME, -1]),
        jnp.array([3.0, 1.0]),
        jnp.array([True, False]),
    ),
    *(jnp.array(2), jnp.ones((BATCH, TIME), jnp.int32), jnp.array([1, 2, 3])),
]


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("name", TAKE_LENGTHS)
def test_lengths_that_do_not_fit_are_refused_in_one_line(name):
    # `length_mask` has no array with batch axes to compare the last two with.
    for lengths in REFUSED[: -2 if name == "length_mask" else None]:
        with pytest.raises(UserError, match="seq_lengths"):
            TAKE_LENGTHS[name](lengths)


@pytest.mark.parametrize("name", TAKE_LENGTHS)
def test_traced_lengths_beyond_their_range_count_as_the_ends(name):
    function = jax.jit(TAKE_LENGTHS[name])
    beyond, within = function(jnp.array([TIME + 2, -1])), function(jnp.array([TIME, 0]))
    jax.tree.map(np.testing.assert_array_equal, beyond, within)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(beyond))


def test_flipping_keeps_padding_and_is_its_own_inverse():
    x, lengths = jnp.arange(10).reshape(2, 5), jnp.array([5, 3])
    flipped = F.flip_sequences(x, lengths)
    np.testing.assert_array_equal(flipped, [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]])
    np.testing.assert_array_equal(F.flip_sequences(flipped, lengths), x)


def test_the_last_element_of_an_empty_sequence_is_zeros():
    expected = np.stack([X[0, 1], np.zeros(TAGS)])
    np.testing.assert_array_equal(F.last_valid(X, jnp.array([2, 0])), expected)
    np.testing.assert_array_equal(F.last_valid(X), X[:, -1])
    np.testing.assert_array_equal(F.last_valid(X[:, :0]), np.zeros((BATCH, TAGS)))
    for pooling in ("last", "mean", "max"):
        found = F.pool_states(X[:, :0], jnp.zeros((BATCH, 0), bool), pooling)
        np.testing.assert_array_equal(found, np.zeros((BATCH, TAGS)))


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("emissions", "tags", "message"),
    [
        (X[:1], LABELS, r"tags .*\(1, 3\), got int32 \(2, 3\)"),  # was once broadcast to two values
        (X[0], LABELS, r"emissions of shape \(batch, time, tags\)"),
        # Once counted as the last tag.
        (X, LABELS.at[0, 1].set(-1), "tags lie between 0 and 3, got -1"),
        (X, LABELS.at[1, 1].set(7), r"tags lie between 0 and 3, got \d to 7"),  # once gave NaN
    ],
)
def test_tags_and_emissions_that_do_not_fit_are_refused_in_one_line(emissions, tags, message):
    with pytest.raises(UserError, match=message):
        F.crf_log_likelihood(CRF, emissions, tags)


def test_tags_past_the_end_may_be_anything_and_traced_ones_count_as_the_ends():
    labels, traced = np.asarray(LABELS), jax.jit(F.crf_log_likelihood)
    padded, wrong, right = labels.copy(), labels.copy(), labels.copy()
    padded[0, 2], padded[1], wrong[0, 1], right[0, 1] = -1, 99, 7, TAGS - 1
    found = F.crf_log_likelihood(CRF, X, jax.device_put(padded), jnp.array([2, 0]))
    np.testing.assert_allclose(found, traced(CRF, X, labels, np.array([2, 0])), rtol=1e-6)
    np.testing.assert_array_equal(traced(CRF, X, wrong), traced(CRF, X, right))
