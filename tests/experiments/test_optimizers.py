"""What an experiment's settings make of agents' gradients: one rule for all of them."""

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
    """An experiment whose gradients are clipped at a norm of 1."""
    given = dict(clip=1.0, agent_learning_rate=None, relaxation="none", relaxed_epochs=0, baseline="none")
    given |= flags
    chosen = resolve(command.settings_type, command.presets, command.default_preset({}), given)
    return command(chosen.settings)


def checked(experiment, *models):
    check_specs([make_spec(model, experiment.settings) for model in models], experiment.settings)


def last_directions(experiment, scales, model="dynamic:3"):
    """Directions of a network and its agent after steps in which the agent's gradient has these scales."""
    optimizer, state = direction_of_descent(experiment, make_spec(model, experiment.settings)), None
    for step, scale in enumerate(scales):
        agent, network = np.float32([0.6, -0.8]) * np.float32(scale), np.float32([3.0, -4.0 + step])
        grads = {"recurrence": {"agent": {"kernel": agent}}, "softmax": {"kernel": network}}
        state = optimizer.init(grads) if state is None else state
        found, state = optimizer.update(grads, state, grads)
    return found["softmax"]["kernel"], found["recurrence"]["agent"]["kernel"]


@pytest.mark.parametrize("command", COMMANDS)
def test_own_rate(command):
    """Adam's first step is as long as its rate; the loop multiplies all directions by the network's rate."""
    experiment = made(command, agent_learning_rate=0.004, learning_rate=0.5)
    np.testing.assert_allclose(last_directions(experiment, [500])[1], [0.008, -0.008], rtol=1e-4)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("relaxation", ["none", "soft"])
def test_large_gradients_of_agents(command, relaxation):
    """They leave the network's steps as they are, but where choices are relaxed."""
    experiment = made(command, relaxation=relaxation)
    network, _ = last_directions(experiment, [0, 0])
    beside, _ = last_directions(experiment, [1, 500])
    assert np.allclose(network, beside, rtol=1e-6) == (relaxation == "none")


@pytest.mark.parametrize("command", COMMANDS)
def test_sweep_over_learning_rates(command):
    """Agents with a rate of their own stand against it; models without agents do not."""
    sweep = dict(learning_rate=(0.1, 0.2), agent_learning_rate=0.01)
    with pytest.raises(UserError, match="--agent-learning-rate none"):
        checked(made(command, **sweep), "lstm", "dynamic:3")
    plain = made(command, **sweep)
    checked(plain, "lstm")
    direction_of_descent(plain, make_spec("lstm", plain.settings))
