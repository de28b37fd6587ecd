"""Check that the comparison of gradient estimators runs, and that its results agree with the theory."""

import json
import sys

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from benchmarks import estimators, tiny_problem
from dynskip_jax import functional as F
from dynskip_jax import rl

NAMED = [estimator.name for estimator in estimators.estimators()]


@pytest.fixture(scope="module")
def results():
    """Return the result of each estimator by its name, from 2,000 samples."""
    return {result.estimator.name: result for result in estimators.run(2000)}


@pytest.mark.slow
def test_unbiased_estimators_are_within_four_standard_errors(results):
    unbiased = [result for result in results.values() if result.estimator.unbiased]
    assert len(unbiased) == 7
    for result in unbiased:
        assert 0 < result.bias < 4 * result.standard_error, result.estimator.name
        assert result.standard_error < 0.5  # otherwise the bound above would be too loose


@pytest.mark.slow
def test_baselines_take_away_variance(results):
    variance = {name: result.variance for name, result in results.items()}
    assert variance["leave-one-out"] < 0.25 * variance["Eq. 5, no baseline"]
    assert variance["moving average"] < 0.25 * variance["Eq. 5, no baseline"]
    assert variance["learned baseline"] < 0.25 * variance["Eq. 5, no baseline"]
    assert variance["sampled entropy, leave-one-out"] < 0.5 * variance["sampled entropy, no baseline"]


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

    for name, baseline in (
        ("Eq. 5, no baseline", 0.0),
        ("moving average", pi @ rewards),
        ("learned baseline", values),
    ):
        gradients = ((rewards - baseline)[..., None] * scores).sum(axis=1)
        of_one_rollout = pi @ np.square(gradients - pi @ gradients).sum(axis=1)
        exact = of_one_rollout / estimators.ROLLOUTS
        np.testing.assert_allclose(results[name].variance, exact, rtol=0.15, err_msg=name)


@pytest.mark.slow
def test_relaxations_are_there_and_the_soft_one_has_no_noise(results):
    relaxed = [result for result in results.values() if result.estimator.mode != "sample"]
    assert [result.estimator.name for result in relaxed] == NAMED[-len(relaxed) :]
    assert len(relaxed) == len(F.RELAXATIONS)
    assert results["soft"].variance < 1e-20
    assert results["soft"].bias > 0.01
    assert all(0 < result.variance < 10 for result in relaxed if result.estimator.name != "soft")


@pytest.mark.slow
def test_critic_is_fitted_to_the_exact_values():
    with jax.enable_x64(True):
        of = tiny_problem.problem(estimators.TIME, estimators.PROBLEM_SEED)
        critic = estimators.fitted_critic(of)
        runs = tiny_problem.every_sequence(of)
        x = np.broadcast_to(of.x, (*runs.seen.shape[:2], of.x.shape[-1]))
        values = rl.critic_values(critic, jax.numpy.asarray(x), runs.seen)
        np.testing.assert_allclose(values, tiny_problem.exact_values(of), atol=1e-9)


def test_summary_by_hand():
    found, exact = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0], [0.0, 4.0]]), np.array([2.0, 0.0])
    result = estimators.summary(estimators.estimators()[0], found, exact)
    np.testing.assert_allclose(result.bias, np.hypot(1.0, 1.0) / 2)
    np.testing.assert_allclose(result.variance, 1.5 + 3.0)
    np.testing.assert_allclose(result.standard_error, np.sqrt(4.5 / 4) / 2)
    np.testing.assert_allclose(result.cosine, 0.5)
    assert result.exact == 2.0


@pytest.mark.slow
def test_command_line_prints_the_table_and_writes_it(results, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(estimators, "run", lambda samples, seed, console: list(results.values()))
    monkeypatch.setattr(sys, "argv", ["estimators", "--samples", "400", "--out", str(tmp_path / "new")])
    estimators.main()
    text = (tmp_path / "new" / "estimators.md").read_text()
    assert text in capsys.readouterr().out
    assert [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines()[2:]] == NAMED
    content = json.loads((tmp_path / "new" / "estimators.json").read_text(), parse_constant=pytest.fail)
    assert content["samples"] == 400
    assert content["about"]["versions"]["jax"] == jax.__version__
    assert [entry["estimator"] for entry in content["results"]] == NAMED
    assert all(np.isfinite(entry["bias"]) for entry in content["results"])
