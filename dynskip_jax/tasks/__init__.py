"""Tasks, each in its own file: model, batches, loss and score. `Learner` has the code that they
share.
"""

from dynskip_jax.tasks.classification import Classification as Classification
from dynskip_jax.tasks.classification import SentencePairs as SentencePairs
from dynskip_jax.tasks.language import LanguageModelling as LanguageModelling
from dynskip_jax.tasks.learner import Learner as Learner
from dynskip_jax.tasks.tagging import Tagging as Tagging
from dynskip_jax.tasks.task import ExampleTask as ExampleTask
from dynskip_jax.tasks.task import Forward as Forward
from dynskip_jax.tasks.task import LossOutput as LossOutput
from dynskip_jax.tasks.task import Task as Task
