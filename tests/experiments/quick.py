"""Define an experiment whose step compiles in milliseconds, for tests of everything except the computation.

It classifies digits by a linear layer with initial weights of zero. No model has a time skip.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data import Examples
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.settings import Data, Settings
from dynskip_jax.settings import setting
from dynskip_jax.tasks import ExampleTask, Forward


@dataclasses.dataclass(frozen=True)
class Digits:
    splits: dict
    sizes: dict
    fingerprint: str = "made with 0"
    name: str = "digits"
    source: str = "made up"


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickData(Data):
    """What is read."""

    length: int = setting(4, "How many digits there are.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickSettings(Settings):
    data: QuickData = dataclasses.field(default_factory=QuickData)


@dataclasses.dataclass(frozen=True)
class NoStack:
    """Stand-in for a stack of one layer that never chooses."""

    skips: tuple = (F.Previous(),)
    reads_reverse: tuple = (False,)


class Linear(nnx.Module):
    def __init__(self, length):
        self.stack = NoStack()
        self.weights = nnx.Param(jnp.zeros((length, 10, 3)))

    def __call__(self, digits):
        return jnp.einsum("btd,tdc->bc", jax.nn.one_hot(digits, 10), self.weights[...])


class ClassOfDigits(ExampleTask):
    def forward(self, model, batch, carry, **how):
        none = jnp.zeros(batch.inputs.shape)
        action = jnp.ones(batch.inputs.shape, jnp.int32)
        trace = F.DecisionTrace(action, none, none, mode="none")
        return Forward(jax.nn.log_softmax(model(batch.inputs)), (trace,))


class Quick(Experiment):
    name, settings_type, presets = "quick", QuickSettings, {"small": {}}
    default_model, commands = "lstm", ("predict", "explain", "oracle")
    columns = {"test_accuracy": ("test accuracy", ".2%")}  # noqa: RUF012
    curves = ("dev_accuracy",)

    def load_data(self):
        rng, splits = np.random.default_rng(0), {}
        for split, size in (("train", 60), ("dev", 20), ("test", 20)):
            digits = rng.integers(10, size=(size, self.settings.data.length)).astype(np.int32)
            splits[split] = Examples(digits, digits[:, 0] % 3)
        return Digits(splits, {name: len(split) for name, split in splits.items()})

    def task(self, spec, data, vocabulary):
        splits = {} if data is None else data.splits
        length, batch_size = self.settings.data.length, self.settings.training.batch_size
        return ClassOfDigits(splits, lambda rngs: Linear(length), batch_size=batch_size)

    def encode(self, vocabulary, text):
        return np.array([int(word) for word in text.split()], np.int32), text.split()
