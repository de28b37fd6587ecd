"""Agreement at a distance: its data, model, tables and pictures."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.data import Examples, agreement
from dynskip_jax.errors import UserError
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, Learner
from dynskip_jax.training.schedule import Schedule
from experiments.agreement import COMMAND
from experiments.experiment import Experiment


class Agreement(Experiment):
    """See `Experiment`."""

    command = COMMAND
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_exact_decisions": ("exact decisions", ".2%"),
    }
    curves = ("dev_accuracy",)
    samples = 4
    sample_text = "w1 a3 w0 b2 w5 )b w4 c7 w2 )c )a"

    def load_data(self) -> agreement.AgreementData:
        """See `Experiment`."""
        data = self.settings.data
        sizes = {**agreement.DEFAULT_SIZES, "train": data.train_examples}
        return agreement.generate(data.length, sizes, data.data_seed)

    def task(self, model: str, data: agreement.AgreementData | None, vocabulary: None) -> Classification:
        """See `Experiment`."""
        s = self.settings

        def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
            return SequenceClassifier(
                agreement.NUM_SYMBOLS,
                s.model.features,
                agreement.NUM_FORMS,
                (self.skip(model),),
                **self.recurrent_options(),
                dropout=s.model.dropout,
                dtype=self.dtype,
                cell_options=(self.cell_options(),),
                rngs=rngs,
            )

        splits = {
            name: Examples(texts.symbols, texts.forms, texts.lengths, buckets=_buckets(s.data.length))
            for name, texts in ({} if data is None else data.splits).items()
        }
        return Classification(splits, make_model, batch_size=s.training.batch_size)

    def schedule(self, model: str, rate: Any) -> Schedule:
        """See `Experiment`; what takes no relaxed epochs keeps its learning rate."""
        return self.decayed_once_sampled(model, rate, self.settings.training.sampled_decay)

    def more_metrics(self, model: str, learner: Learner, params: Any, keys: Any) -> dict[str, np.ndarray]:
        """How often the agent's last choice is the state that had just read the opening word."""
        if not self.skip(model).is_stochastic:
            return {}
        chosen, right = _last_choices(learner, params, "test", keys)
        return {"test_exact_decisions": (chosen == right).mean(axis=1)}

    def draw(self, model: str, learner: Learner, params: Any, keys: Any, folder: Path, member: int) -> None:
        """The agent's last choice against the right one."""
        skip = self.skip(model)
        if not skip.is_stochastic:
            return
        chosen, right = _last_choices(learner, params, "dev", keys)
        reached = right <= skip.max_skip
        plots.action_against_truth(
            chosen[member][reached] - 1,
            right[reached] - 1,
            skip.max_skip,
            folder / "last_skip_against_truth.png",
            f"{model}: the last choice against the right one",
        )

    def encode(self, vocabulary: None, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; words as `symbol_names` writes them."""
        index = {name: symbol for symbol, name in enumerate(agreement.symbol_names())}
        words = text.split()
        unknown = [word for word in words if word not in index]
        if unknown:
            raise UserError(f"{unknown[0]!r} is no word of this task: words are a0 to h9, )a to )h, w0 to w9")
        symbols = np.array([index[word] for word in words], np.int32)
        agreement.answer(symbols)
        return symbols, words


def _last_choices(
    learner: Learner, params: Any, split: str, keys: Any
) -> tuple[Int[np.ndarray, "seeds examples"], Int[np.ndarray, " examples"]]:
    """The last k of each example, chosen greedily, and the right one."""
    found, right = [], []
    for batch, chosen in learner.choices(params, split, keys, layer=0):
        lengths = batch.seq_lengths[batch.mask]
        last = np.take_along_axis(chosen[:, batch.mask], lengths[None, :, None] - 1, axis=2)
        found.append(last[..., 0])
        texts = [row[:length] for row, length in zip(batch.inputs[batch.mask], lengths, strict=True)]
        right += [len(text) - 1 - agreement.answer(text)[1] for text in texts]
    return np.concatenate(found, axis=1), np.array(right)


def _buckets(length: int) -> tuple[int, ...]:
    """To how many lengths batches are padded: a few, for each is a program of its own."""
    return tuple(sorted({math.ceil(length * share) for share in (0.4, 0.7, 1.0)}))
