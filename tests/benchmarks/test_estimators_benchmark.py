"""Check that the comparison of gradient estimators agrees with the theory, and writes its table."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from benchmarks import estimators, tiny_problem


@pytest.fixture(scope="module")
def results():
    """Return the result of each estimator by its name, from 2,000 samples."""
    return {result.estimator.name: result for result in estimators.run(2000)}


@pytest.mark.slow
def test_biases_and_variances_are_those_of_the_theory(results):
    unbiased = [result for result in results.values() if result.estimator.unbiased]
    assert len(unbiased) == 7
    for result in unbiased:
        assert 0 < result.bias < 4 * result.standard_error, result.estimator.name
        assert result.standard_error < 0.5  # otherwise the bound above would be too loose
    variance = {name: result.variance for name, result in results.items()}
    for name in ("leave-one-out", "moving average", "learned baseline"):
        assert variance[name] < 0.25 * variance["Eq. 5, no baseline"]
    assert variance["sampled entropy, leave-one-out"] < 0.5 * variance["sampled entropy, no baseline"]
    assert variance["soft"] < 1e-20 and results["soft"].bias > 0.01


@pytest.mark.slow
def test_sampled_variance_is_the_enumerated_one(results):
    with jax.enable_x64(True):
        of = tiny_problem.problem(estimators.TIME, estimators.PROBLEM_SEED)
        weights, as_agent = ravel_pytree(of.agent)

        def log_probs(weights):
            return tiny_problem.every_sequence(of._replace(agent=as_agent(weights))).decision.log_prob

        scores = np.asarray(jax.jacrev(log_probs)(weights))
        pi = np.exp(np.asarray(log_probs(weights)).sum(axis=1))
        rewards = np.asarray(tiny_problem.every_sequence(of).rewards[:, -1:])
        values = tiny_problem.exact_values(of)

    baselines = {"Eq. 5, no baseline": 0.0, "moving average": pi @ rewards, "learned baseline": values}
    for name, baseline in baselines.items():
        gradients = ((rewards - baseline)[..., None] * scores).sum(axis=1)
        of_one_rollout = pi @ np.square(gradients - pi @ gradients).sum(axis=1)
        exact = of_one_rollout / estimators.ROLLOUTS
        np.testing.assert_allclose(results[name].variance, exact, rtol=0.15, err_msg=name)


def test_summary_by_hand():
    found, exact = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0], [0.0, 4.0]]), np.array([2.0, 0.0])
    result = estimators.summary(estimators.estimators()[0], found, exact)
    np.testing.assert_allclose(result.bias, np.hypot(1.0, 1.0) / 2)
    np.testing.assert_allclose(result.variance, 1.5 + 3.0)
    np.testing.assert_allclose(result.standard_error, np.sqrt(4.5 / 4) / 2)
    np.testing.assert_allclose(result.cosine, 0.5)
