"""Check that the comparison of gradient estimators agrees with the theory, and writes its table."""

import numpy as np
import pytest

from benchmarks import estimators


@pytest.mark.slow
def test_biases_and_variances_are_those_of_the_theory():
    results = {result.estimator.name: result for result in estimators.run(2000)}
    unbiased = [result for result in results.values() if result.estimator.unbiased]
    assert len(unbiased) == 7
    for result in unbiased:
        assert 0 < result.bias < 4 * result.standard_error, result.estimator.name
        assert result.standard_error < 0.5  # otherwise the bound above would be too loose
    variance = {name: result.variance for name, result in results.items()}
    for name in ("leave-one-out", "moving average", "learned baseline"):
        assert variance[name] < 0.25 * variance["Eq. 5, no baseline"]
    assert (
        variance["sampled entropy, leave-one-out"] < 0.5 * variance["sampled entropy, no baseline"]
    )
    assert variance["soft"] < 1e-20 and results["soft"].bias > 0.01


def test_summary_by_hand():
    found = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    exact = np.array([2.0, 0.0])
    result = estimators.summary(estimators.estimators()[0], found, exact)
    np.testing.assert_allclose(result.bias, np.hypot(1.0, 1.0) / 2)
    np.testing.assert_allclose(result.variance, 1.5 + 3.0)
    np.testing.assert_allclose(result.standard_error, np.sqrt(4.5 / 4) / 2)
    np.testing.assert_allclose(result.cosine, 0.5)
