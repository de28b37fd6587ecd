"""Check the CRF against sums over all tag sequences and pytorch-crf: masking, constraints,
float32.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dynskip_jax import functional as F
from dynskip_jax.data.tag_schemes import allowed_transitions

TAGS, TIME = 3, 4
BIOES = ["O", "B-X", "I-X", "E-X", "S-X"]

# Each function is compiled once per shape, for all tests.
log_likelihood, marginals, decode, constrain = map(
    jax.jit, (F.crf_log_likelihood, F.crf_marginals, F.crf_decode, F.crf_constrain)
)
pytestmark = pytest.mark.usefixtures("double_precision")


def draw(seed, batch=5, time=TIME, tags=TAGS, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = ((tags, tags), (tags,), (tags,))
    params = F.CRFParams(*(scale * rng.normal(size=shape) for shape in shapes))
    return params, scale * rng.normal(size=(batch, time, tags))


def narrow(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)


def all_scores(params, emissions, allowed=None):
    """Return the scores of all tag sequences of one row, or of those allowed, summed term by
    term.
    """
    (time, tags), scores = emissions.shape, {}
    transitions, start, end = jax.tree.map(np.asarray, tuple(params))
    for y in itertools.product(range(tags), repeat=time):
        pairs = list(itertools.pairwise(y))
        score = sum(emissions[t, y[t]] for t in range(time)) + sum(
            transitions[pair] for pair in pairs
        )
        if allowed is None or (
            allowed.start[y[0]]
            and allowed.end[y[-1]]
            and all(allowed.transitions[pair] for pair in pairs)
        ):
            scores[y] = score + (start[y[0]] + end[y[-1]] if y else 0.0)
    return scores


def log_sum(scores):
    return np.logaddexp.reduce(list(scores))


def close(actual, expected, tolerance=1e-11):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def check_enumerated(params, emissions, lengths, unconstrained=None, allowed=None):
    """Compare likelihood, marginals and decoding with sums over all sequences, or those allowed."""
    n = np.array(lengths)
    log_p, decoded = (
        np.asarray(marginals(params, emissions, n)),
        np.asarray(decode(params, emissions, n)),
    )
    of_best = log_likelihood(params, emissions, decoded, n)
    for b, length in enumerate(lengths):
        scores = all_scores(unconstrained or params, np.asarray(emissions[b, :length]), allowed)
        total = log_sum(scores.values())
        assert tuple(decoded[b, :length]) == max(scores, key=scores.get)
        close(of_best[b], max(scores.values()) - total)
        assert not decoded[b, length:].any() and not log_p[b, length:].any()
        for t, k in np.ndindex(length, params.start.shape[0]):
            ways = [np.exp(s - total) for y, s in scores.items() if y[t] == k]
            assert ways or np.exp(log_p[b, t, k]) == 0.0
            close(np.exp(log_p[b, t, k]), sum(ways))


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, TIME), min_size=5, max_size=5))
@settings(deadline=None, max_examples=20)
def test_all_of_it_is_what_enumeration_says(seed, lengths):
    with jax.enable_x64(True):
        check_enumerated(*draw(seed), lengths)


def test_constraints_leave_the_sequences_they_allow():
    params, emissions = draw(4, batch=6, tags=len(BIOES), scale=3.0)
    allowed = allowed_transitions(BIOES, "BIOES")
    assert len(all_scores(params, emissions[0], allowed)) == 34
    check_enumerated(
        constrain(params, *allowed), emissions, [1, 2, TIME, 1, 2, TIME], params, allowed
    )


@pytest.mark.parametrize("length", [0, 1, TIME])
def test_likelihoods_of_all_sequences_sum_to_one(length):
    params, emissions = draw(0, batch=1)
    scores = all_scores(params, np.asarray(emissions[0, :length]))
    y = np.full((len(scores), TIME), -7)  # -7 is no tag: it fills the padding
    y[:, :length] = list(scores)
    log_p = log_likelihood(params, np.repeat(emissions, len(y), axis=0), y, np.full(len(y), length))
    close(log_p, np.array(list(scores.values())) - log_sum(scores.values()))
    close(np.exp(log_p).sum(), 1.0)


@jax.jit
def gradients_of_all(params, emissions, tags, n):
    def loss(params, emissions):
        log_p, of_tags = log_likelihood(params, emissions, tags, n), marginals(params, emissions, n)
        return jnp.sum(log_p**2) + jnp.sum(jnp.sin(of_tags)), (log_p, of_tags)

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, emissions)


@pytest.mark.parametrize("padding", [0.0, np.nan, np.inf])
def test_neither_the_amount_nor_the_content_of_padding_matters(padding):
    params, emissions = draw(3)
    n = np.array([4, 0, 1, 3, 2])
    tags = np.asarray(np.random.default_rng(0).integers(TAGS, size=(5, TIME)))
    inside = np.arange(TIME) < n[:, None]

    def padded(time, padding):
        e, y = np.full((5, time, TAGS), padding), np.full((5, time), -1)
        e[:, :TIME] = np.where(inside[:, :, None], emissions, padding)
        y[:, :TIME] = np.where(inside, tags, TAGS)
        (d_params, d_e), (log_p, of_tags) = gradients_of_all(params, e, y, n)
        decoded, d_e = np.asarray(decode(params, e, n)), np.asarray(d_e)
        assert not d_e[:, TIME:].any() and not decoded[:, TIME:].any()
        return d_params, log_p, d_e[:, :TIME], np.asarray(of_tags)[:, :TIME], decoded[:, :TIME]

    for a, b in zip(
        jax.tree.leaves(padded(7, padding)), jax.tree.leaves(padded(TIME, 0.0)), strict=True
    ):
        assert np.isfinite(a).all()
        close(a, b)


def test_constrained_gradients_are_finite_and_leave_forbidden_places_alone():
    params, emissions = narrow(draw(5, batch=3, tags=5, time=6, scale=5.0))
    allowed = allowed_transitions(BIOES, "BIOES")
    n = np.array([6, 1, 0])
    tags = np.array([[1, 2, 3, 0, 4, 0], [4, 0, 0, 0, 0, 0], [0] * 6])

    def loss(params, emissions):
        constrained = F.crf_constrain(params, *allowed)
        log_p = log_likelihood(constrained, emissions, tags, n)
        true = jnp.take_along_axis(marginals(constrained, emissions, n), tags[:, :, None], axis=-1)
        return -jnp.sum(log_p) - jnp.sum(true)

    value, (d_params, d_emissions) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(
        params, emissions
    )
    assert np.isfinite(value) and value.dtype == jnp.float32
    for d, mask in zip(map(np.asarray, d_params), allowed, strict=True):
        assert np.isfinite(d).all() and not d[~mask].any() and d[mask].any()
    assert np.isfinite(d_emissions).all() and not np.asarray(d_emissions)[2].any()


EXTREMES = {
    "moderate": lambda rng, shape: rng.normal(size=shape),
    "forbidden and strong": lambda rng, shape: rng.choice([-200.0, 0.0, 200.0], size=shape),
    "mostly forbidden": lambda rng, shape: (
        rng.choice([-200.0, -200.0, 0.0], size=shape) + rng.normal(size=shape)
    ),
    "wide": lambda rng, shape: 60 * rng.normal(size=shape),
}


@jax.jit
def value_marginals_and_gradient(params, emissions, tags):
    value, pull_back = jax.vjp(lambda *given: log_likelihood(*given, tags), params, emissions)
    return value, marginals(params, emissions), pull_back(jnp.ones_like(value))


def check_in_float32(params, emissions, tags):
    """Compare float32 results with expectations over all tag sequences in double precision."""
    found = value_marginals_and_gradient(*narrow((params, emissions)), tags)
    value, log_p, (d_params, d_emissions) = jax.tree.map(partial(np.asarray, dtype=float), found)
    batch, time, n = emissions.shape
    y = np.array(list(itertools.product(range(n), repeat=time)))
    of_pairs = (np.eye(n)[y[:, :-1], :, None] * np.eye(n)[y[:, 1:], None, :]).sum(axis=1)
    expected = [np.zeros_like(leaf) for leaf in params]
    for b in range(batch):
        score = emissions[b][np.arange(time), y].sum(axis=1)
        score = score + np.einsum("sij,ij->s", of_pairs, params.transitions)
        score = score + params.start[y[:, 0]] + params.end[y[:, -1]]
        log_z = np.logaddexp.reduce(score)
        p = np.exp(score - log_z)
        is_truth = (y == tags[b]).all(axis=1)
        np.testing.assert_allclose(value[b], score[is_truth][0] - log_z, rtol=2e-6, atol=2e-3)
        of_tags = np.einsum("s,stk->tk", p, np.eye(n)[y])
        np.testing.assert_allclose(np.exp(log_p[b]), of_tags, atol=2e-3)
        surplus = is_truth - p
        np.testing.assert_allclose(
            d_emissions[b], np.einsum("s,stk->tk", surplus, np.eye(n)[y]), atol=2e-3
        )
        expected[0] += np.einsum("s,sij->ij", surplus, of_pairs)
        expected[1] += surplus @ np.eye(n)[y[:, 0]]
        expected[2] += surplus @ np.eye(n)[y[:, -1]]
    for d, of_all in zip(d_params, expected, strict=True):
        np.testing.assert_allclose(d, of_all, atol=2e-3 * batch)


@pytest.mark.parametrize("offset", [0.0, 95.0])
@pytest.mark.parametrize("name", EXTREMES)
def test_scores_whose_exponentials_underflow(name, offset):
    """Regression: paths 87 nats below a forbidden or a strong one were lost, and so were their
    gradients.
    """
    for seed, n in itertools.product(range(4), (2, 3)):
        rng = np.random.default_rng(seed)
        params = F.CRFParams(*(EXTREMES[name](rng, shape) for shape in ((n, n), (n,), (n,))))
        emissions = rng.normal(size=(3, TIME, n)) + offset * rng.choice([-1, 1], size=(1, 1, n))
        check_in_float32(params, emissions, rng.integers(n, size=(3, TIME)))


def test_a_path_far_below_a_forbidden_one():
    transitions = np.array([[-200.0, 0.0], [0.0, 0.0]])
    params = F.CRFParams(transitions, np.array([0.0, -100.0]), np.array([100.0, 0.0]))
    check_in_float32(params, np.zeros((1, 2, 2)), np.array([[0, 1]]))


def test_rows_on_several_devices_have_the_results_of_one():
    """Regression: on an explicit mesh, entries of the scores had no known sharding."""
    rows = 3
    params, emissions = draw(0, batch=rows)
    tags = np.random.default_rng(0).integers(0, TAGS, (rows, TIME))
    lengths = np.array([TIME, 0, 2])

    def of_each(params, emissions, tags, lengths):
        return (
            F.crf_log_likelihood(params, emissions, tags, lengths),
            F.crf_marginals(params, emissions, lengths),
            F.crf_decode(params, emissions, lengths),
        )

    def total(params, *rows):
        likelihood, log_probs, _ = of_each(params, *rows)
        return likelihood.sum() + jnp.sin(log_probs).sum()

    def results(params, emissions, tags, lengths):
        rows = (emissions, tags, lengths)
        return of_each(params, *rows), jax.grad(total, (0, 1))(params, *rows)

    expected = jax.jit(results)(params, emissions, tags, lengths)
    kinds = (AxisType.Explicit,)
    mesh = jax.make_mesh((rows,), ("batch",), axis_types=kinds, devices=jax.devices()[:rows])
    with jax.set_mesh(mesh):
        shared = jax.device_put(params, NamedSharding(mesh, P()))
        divided = jax.device_put((emissions, tags, lengths), NamedSharding(mesh, P("batch")))
        found = jax.jit(results)(shared, *divided)
    assert all(jax.typeof(leaf).sharding.spec[0] == "batch" for leaf in found[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)
