"""An experiment whose step compiles in milliseconds, for tests of everything except the
computation.

It classifies digits by a linear layer with initial weights of zero. No model has a time skip.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.config.experiment import Dataset, Experiment
from dynskip_jax.config.flags import Size
from dynskip_jax.config.settings import Data, Settings
from dynskip_jax.data import Examples
from dynskip_jax.errors import UserError
from dynskip_jax.tasks import ExampleTask, Forward


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickData(Data):
    """What is read."""

    length: Size = 4
    """How many digits there are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickSettings(Settings):
    data: QuickData = QuickData()


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
        digits = digits[:, : self.weights.shape[0]]  # without the padding of a text that is read
        return jnp.einsum("btd,tdc->bc", jax.nn.one_hot(digits, 10), self.weights[...])


class ClassOfDigits(ExampleTask):
    @staticmethod
    def load(settings):
        rng, sizes = np.random.default_rng(0), {"train": 60, "dev": 20, "test": 20}
        digits = {
            n: rng.integers(10, size=(k, settings.data.length)).astype(np.int32)
            for n, k in sizes.items()
        }
        splits = {name: Examples(x, x[:, 0] % 3) for name, x in digits.items()}
        return Dataset("digits", sizes, "made with 0", "made up", content=splits)

    def __init__(self, spec, settings, data, vocabulary):
        self.length = settings.data.length
        splits = {} if data is None else data.content
        batch_size = settings.training.batch_size
        super().__init__(splits, lambda rngs: Linear(self.length), batch_size=batch_size)

    def encode(self, text):
        words = text.split()
        if len(words) != self.length:
            raise UserError(f"a text has {self.length} digits, got {text!r}")
        return np.array([int(word) for word in words], np.int32), words

    def forward(self, model, batch, carry, **how):
        none = jnp.zeros(batch.inputs.shape)
        trace = F.DecisionTrace(jnp.ones(batch.inputs.shape, jnp.int32), none, none, mode="none")
        return Forward(jax.nn.log_softmax(model(batch.inputs)), (trace,))


EXPERIMENT = Quick = Experiment(
    name="quick",
    about="Digits that compile in milliseconds.",
    task=ClassOfDigits,
    settings=QuickSettings,
    presets={"small": {}},
    model="lstm",
)
