"""Tasks, each in its own file: model, batches, loss and score. `Learner` has the code that they share."""

from dynskip_jax.tasks.classification import Classification, SentencePairs
from dynskip_jax.tasks.language import LanguageModelling
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.tagging import Tagging
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput, Task

__all__ = [
    "Classification",
    "ExampleTask",
    "Forward",
    "LanguageModelling",
    "Learner",
    "LossOutput",
    "SentencePairs",
    "Tagging",
    "Task",
]
