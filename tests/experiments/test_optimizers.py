"""Check that all experiments treat agents' gradients by the same rules."""

import numpy as np
import pytest
from commands import experiment_in

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import agreement, conll2003, imdb, number_prediction, ptb, sst
from dynskip_jax.experiments.build import direction_of_descent
from dynskip_jax.experiments.model_spec import check_specs, make_spec
from dynskip_jax.experiments.settings import resolve

COMMANDS = [
    pytest.param(experiment_in(module), id=module.__name__.split(".")[-1])
    for module in (agreement, conll2003, imdb, number_prediction, ptb, sst)
]


def made(command, **flags):
    """Return an experiment whose gradients are clipped at a norm of 1."""
    given = dict(clip=1.0, agent_learning_rate=None, relaxation="none", relaxed_epochs=0, baseline="none")
    given |= flags
    chosen = resolve(command.settings_type, command.presets, command.default_preset({}), given)
    return command(chosen.settings)


def checked(experiment, *models):
    check_specs([make_spec(model, experiment.settings) for model in models], experiment.settings)


def last_directions(experiment, scales, model="dynamic:3"):
    """Return the last update directions of a network and its agent.

    Args:
        experiment: Experiment that provides the optimizer.
        scales: Scale of the agent's gradient at each step.
        model: Name of the model.
    """
    optimizer, state = direction_of_descent(experiment, make_spec(model, experiment.settings)), None
    for step, scale in enumerate(scales):
        agent, network = np.float32([0.6, -0.8]) * np.float32(scale), np.float32([3.0, -4.0 + step])
        grads = {"recurrence": {"agent": {"kernel": agent}}, "softmax": {"kernel": network}}
        state = optimizer.init(grads) if state is None else state
        found, state = optimizer.update(grads, state, grads)
    return found["softmax"]["kernel"], found["recurrence"]["agent"]["kernel"]


def test_agents_that_no_relaxation_trains_are_clipped_separately():
    """A relaxation is for the models that have one: LSTM-Jump, compared with a relaxed agent, has none."""
    for relaxation in ("none", "soft"):
        experiment = made(imdb.IMDB, relaxation=relaxation, relaxed_epochs=int(relaxation != "none"))
        network, _ = last_directions(experiment, [0, 0], "lstm_jump")
        np.testing.assert_array_equal(last_directions(experiment, [500, 500], "lstm_jump")[0], network)


@pytest.mark.parametrize("command", COMMANDS)
def test_own_rate(command):
    """Adam's first step is as long as its rate. The loop multiplies all directions by the network's rate."""
    experiment = made(command, agent_learning_rate=0.004, learning_rate=0.5)
    np.testing.assert_allclose(last_directions(experiment, [500])[1], [0.008, -0.008], rtol=1e-4)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("relaxation", ["none", "soft"])
def test_large_gradients_of_agents(command, relaxation):
    """They change the network's steps only if choices are relaxed."""
    experiment = made(command, relaxation=relaxation)
    network, _ = last_directions(experiment, [0, 0])
    beside, _ = last_directions(experiment, [1, 500])
    assert np.allclose(network, beside, rtol=1e-6) == (relaxation == "none")


@pytest.mark.parametrize("command", COMMANDS)
def test_sweep_over_learning_rates(command):
    """A sweep is refused if agents have a separate learning rate. Models without agents allow it."""
    sweep = dict(learning_rate=(0.1, 0.2), agent_learning_rate=0.01)
    with pytest.raises(UserError, match="--agent-learning-rate none"):
        checked(made(command, **sweep), "lstm", "dynamic:3")
    plain = made(command, **sweep)
    checked(plain, "lstm")
    direction_of_descent(plain, make_spec("lstm", plain.settings))
