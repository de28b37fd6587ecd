"""An environment, and the agent that is trained in it."""

from typing import Any

import numpy as np
from flax import nnx
from typing_extensions import override

from dynskip_jax.agents.actor_critic import ActorCritic
from dynskip_jax.agents.environments import VERSIONS, describe
from dynskip_jax.config.experiment import Dataset
from dynskip_jax.errors import UserError
from dynskip_jax.runs.load import Trained
from dynskip_jax.tasks.task import Task

_SOLVED = 0.9  # return from which on the table counts an environment as solved
_COLDEST = 0.05  # temperature of relaxed choices


class PopGym(Task):
    """A task that is played instead of read; `AgentLearner` trains its `ActorCritic`."""

    score = "return"
    num_batches = 1

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        info = describe(settings.data.env)
        agent = settings.agent
        read = "the observation, the previous action and whether it is the first step"
        if settings.data.time:
            read += ", and the time"
        lines = [f"γ {agent.discount:g}, λ of GAE {agent.gae_lambda:g}; an agent reads {read}"]
        if agent.cool_after is not None:
            lines.append(
                f"the temperature of relaxed choices halves every {agent.halving_steps:,} steps "
                f"after {agent.cool_after:,}"
            )
        sizes = {"observation": info.observation_features, "actions": sum(info.action_sizes)}
        if info.longest is not None:
            sizes["longest episode"] = info.longest
        return Dataset(info.id, sizes, info.fingerprint, VERSIONS, info, lines=lines)

    def __init__(self, spec: Any, settings: Any, data: Dataset | None, vocabulary: None):
        self.info = data.content if data is not None else describe(settings.data.env)
        self.batch_size = settings.training.batch_size
        self.agent = settings.agent
        self.ppo = settings.training
        longest = self.info.longest if settings.data.time else None
        if settings.data.time and longest is None:
            raise UserError(
                f"{self.info.id} does not say how long its episodes are: leave out --time"
            )

        def make_model(rngs: nnx.Rngs) -> ActorCritic:
            return ActorCritic(
                self.info.observation_features,
                self.info.action_sizes,
                settings.model.features,
                longest=longest,
                cell=spec.cell_options,
                rngs=rngs,
                **spec.layer_options(),
            )

        super().__init__(make_model)

    def temperature(self, steps: int) -> float:
        """Return the temperature of relaxed choices after so many environment steps."""
        after = self.agent.cool_after
        if after is None or steps <= after:
            return 1.0
        return max(_COLDEST, 0.5 ** ((steps - after) / self.agent.halving_steps))


def measure_training(trained: Trained) -> dict[str, np.ndarray]:
    """Return what the table says of the training, each (seeds,); NaN for never."""
    records = trained.run.records()
    returns = np.array([record["train_return"] for record in records])
    solved = returns >= _SOLVED
    first = np.where(solved.any(0), solved.argmax(0), -1)
    steps = np.array([record["step"] for record in records] + [np.nan])
    return {"train_return_best": returns.max(0), "train_steps_to_0.9": steps[first]}
