"""What experiments on sentences share: embeddings, layers, optimizers, averages, and reading a text."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

from dynskip_jax import functional as F
from dynskip_jax.data import Vocabulary
from dynskip_jax.data.sentences import SentenceCorpus
from dynskip_jax.data.word_vectors import WordVectors, read_word_vectors, vectors_of
from dynskip_jax.errors import UserError
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks import Classification, Learner
from dynskip_jax.training.asgd import averaging_rule
from dynskip_jax.training.loop import FitSettings
from dynskip_jax.training.schedule import Schedule, decay_after
from experiments.experiment import Experiment
from experiments.sentence_settings import ClassifierSettings, SentenceSettings

_ROWS = 200  # side by side in evaluation: what is projected of long texts takes memory


class SentenceExperiment(Experiment):
    """See `Experiment`; an experiment on sentences says its data, its task and how a text is split."""

    settings: SentenceSettings

    def check(self) -> None:
        """See `Experiment`."""
        super().check()
        if not self.settings.model.train_embeddings and self.settings.data.embeddings is None:
            raise UserError(
                "words' vectors that are not trained are of no use unless they are read: give "
                "--embeddings FILE, or --train-embeddings"
            )

    def about_data(self, data: SentenceCorpus) -> Sequence[str]:
        """See `Experiment`; which words are unknown, and how many."""
        return [data.about]

    def vocabulary(self, data: SentenceCorpus) -> Vocabulary:
        """See `Experiment`."""
        return data.vocabulary

    def skip_options(self) -> dict[str, Any]:
        """See `Experiment`; with what Skip RNN and LSTM-Jump take."""
        agent = self.settings.agent
        names = ("max_jump", "read_steps", "max_jumps", "update_bias")
        return super().skip_options() | {name: getattr(agent, name) for name in names}

    def recurrent_options(self) -> dict[str, Any]:
        """See `Experiment`; with or without an output gate.

        Raises:
            UserError: the transition has none.
        """
        options, m = super().recurrent_options(), self.settings.model
        if not m.output_gate:
            if not hasattr(options["transition"], "output_gate"):
                raise UserError(f"--transition {m.transition} has no output gate: leave out --no-output-gate")
            options["transition"] = dataclasses.replace(options["transition"], output_gate=False)
        return options

    def layers(self, model: str) -> dict[str, Any]:
        """Returns what models are given of their layers, but for their sizes."""
        m = self.settings.model
        hidden = m.dropout if m.dropout_hidden is None else m.dropout_hidden
        dropped = dict(weight_dropout=m.dropout_weights, zoneout=m.zoneout)
        below = m.num_layers - 1
        return dict(
            skip=(F.Previous(),) * below + (self.skip(model),),
            **self.recurrent_options(),
            bidirectional=m.bidirectional,
            pooling=m.pooling,
            dropout=(
                m.dropout if m.dropout_inputs is None else m.dropout_inputs,
                *(hidden,) * below,
                m.dropout,
            ),
            variational=m.locked,
            dtype=self.dtype,
            layer_options=[dropped] * below + [dropped | self.cell_options()],
        )

    def embedding(
        self, data: SentenceCorpus | None, vocabulary: Vocabulary
    ) -> Callable[[nnx.Rngs], nnx.Embed]:
        """Returns what makes the table of words; vectors are read where there is something to train on."""
        m, init = self.settings.model, uniform(self.settings.model.embedding_scale)
        found = self._vectors(vocabulary) if self.settings.data.embeddings and data is not None else None

        def start(
            key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32, out_sharding: Any = None
        ) -> Any:
            drawn = init(key, shape, dtype)
            if found is None:
                return drawn
            return jnp.where(found.found[:, None], found.table.astype(dtype), drawn)

        return lambda rngs: nnx.Embed(len(vocabulary), m.embedding_features, embedding_init=start, rngs=rngs)

    def _vectors(self, vocabulary: Vocabulary) -> WordVectors:
        path, width = self.settings.data.embeddings, self.settings.model.embedding_features
        wanted = {form for word in vocabulary.tokens for form in (word, word.lower())}
        return vectors_of(vocabulary.tokens, read_word_vectors(path, wanted, width), width)

    def schedule(self, model: str, rate: Any) -> Schedule:
        """See `Experiment`."""
        training = self.settings.training
        return decay_after(rate, 1 / training.decay, training.decay_after)

    def optimizer_options(self, model: str) -> dict[str, Any]:
        """See `Experiment`."""
        training = self.settings.training
        return {
            "kind": training.optimizer,
            "weight_decay": training.weight_decay,
            "frozen": () if self.settings.model.train_embeddings else ("embedding",),
        }

    def fit_settings(self, model: str, learner: Learner) -> FitSettings:
        """See `Experiment`; with averages of the iterates."""
        training = self.settings.training
        rule = averaging_rule(training.average, training.average_interval, training.average_after)
        return dataclasses.replace(super().fit_settings(model, learner), average=rule)


class ClassifierExperiment(SentenceExperiment):
    """Sentences with a class each.

    Attributes:
        labels: names of the classes.
    """

    settings: ClassifierSettings
    labels: ClassVar[tuple[str, ...]]
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_share_read": ("words read", ".1%"),
    }
    curves = ("dev_accuracy",)
    samples = 4

    def task(self, model: str, data: SentenceCorpus | None, vocabulary: Vocabulary) -> Classification:
        """See `Experiment`."""
        m, training = self.settings.model, self.settings.training
        embedding = self.embedding(data, vocabulary)

        def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
            return SequenceClassifier(
                len(vocabulary),
                m.features,
                len(self.labels),
                embedding=embedding(rngs),
                word_dropout=m.dropout_words,
                **self.layers(model),
                rngs=rngs,
            )

        return Classification(
            {} if data is None else data.splits,
            make_model,
            batch_size=training.batch_size,
            evaluation_rows=_ROWS,
            activation_coef=training.activation_coef,
            temporal_coef=training.temporal_coef,
        )

    @property
    def max_length(self) -> int | None:
        """How many words of a text are read; None for all."""
        return None

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; `<unk>` stands for words that are not known."""
        tokens = vocabulary.encode(self.split(text)[: self.max_length])
        return tokens, vocabulary.decode(tokens)

    def says(self, vocabulary: Vocabulary, predicted: Any, probability: float) -> str:
        """See `Experiment`."""
        return f"{self.labels[int(predicted)]}  ({probability:.3f})"
