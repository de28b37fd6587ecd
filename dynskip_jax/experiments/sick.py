"""How alike two sentences are (SICK), with LSTMs, peephole and untied LSTMs.

    python -m experiments.sick --data DIR --model lstm --transition ulstm
    python -m experiments.sick predict --run-dir DIR < pairs.txt
    python -m experiments.sick explain --run-dir DIR --text $'a dog runs\ta cat runs'

`predict` and `explain` read two sentences separated by a tab, and print a rating from 1 to 5. Test r of five
seeds on two CPU cores, other jobs running:

    preset  what it is                                        lstm             plstm            time
    small   random vectors, 150 units, the default            0.7231 ± 0.0214  0.7221 ± 0.0132  4 min each
    paper   that of the paper on untied LSTMs, with GloVe's vectors (--embeddings): not measured

Without --data the pairs are looked for in $DYNSKIP_DATA_DIR/sick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.sentences import (
    AGENT,
    SentenceExperiment,
    SentenceModel,
    SentenceSettings,
    SentenceTraining,
)
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import setting

if TYPE_CHECKING:
    from dynskip_jax.analysis.reading import Reading
    from dynskip_jax.data import Vocabulary
    from dynskip_jax.data.sentences import SentenceCorpus
    from dynskip_jax.models import SentencePairModel
    from dynskip_jax.tasks import SentencePairs
    from dynskip_jax.trained import Trained

models_lib = LazyModule("dynskip_jax.models")
nnx = LazyModule("flax.nnx")
sentence_data = LazyModule("dynskip_jax.data.sentences")
sick_data = LazyModule("dynskip_jax.data.corpora")
tasks_lib = LazyModule("dynskip_jax.tasks")

PRESETS: dict[str, dict[str, Any]] = {
    "small": dict(
        **AGENT,
        features=150,
        embedding_features=100,
        dropout=0.3,
        locked=True,
        clip=1.0,
        epochs=12,
        patience=4,
        average="always",
        average_after=2,
    ),
    # The paper on untied LSTMs, Section Semantic Relatedness, and Tai et al. (2015). Their vectors are not
    # included: the preset needs --embeddings.
    "paper": dict(
        features=150,
        train_embeddings=False,
        optimizer="adagrad",
        learning_rate=0.03,
        weight_decay=1e-4,
        epochs=10,
        unknown_rate=0.0,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairModel(SentenceModel):
    """What the network is made of."""

    similarity_features: int = setting(50, "Size of the layer that compares two sentences.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTraining(SentenceTraining):
    """For how long and how fast."""

    batch_size: int = shared.batch_size(25)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairSettings(SentenceSettings):
    """All settings of relatedness on SICK."""

    model: PairModel = dataclasses.field(default_factory=PairModel)
    training: PairTraining = dataclasses.field(default_factory=PairTraining)


class SICK(SentenceExperiment):
    """See `Experiment`."""

    name = "sick"
    settings_type = PairSettings
    presets = PRESETS
    default_model = "dynamic:3"
    commands = ("predict", "explain", "oracle")
    columns = {  # noqa: RUF012 (read only)
        "dev_pearson": ("dev r", ".4f"),
        "test_pearson": ("test r", ".4f"),
        "test_spearman": ("test ρ", ".4f"),
        "test_mse": ("test MSE", ".4f"),
        "test_pearson_averaged": ("test r, averaged", ".4f"),
        "test_read_fraction": ("words read", ".1%"),
    }
    curves = ("dev_pearson",)
    sample_text = "a man is playing a guitar\ta man is not playing a guitar"

    def load_data(self) -> SentenceCorpus:
        """See `Experiment`."""
        data = self.settings.data
        pairs, source = sick_data.find_sick(data.data)
        return sentence_data.pair_corpus(
            "sick",
            pairs,
            source,
            min_count=data.min_count,
            max_words=data.max_words,
            buckets=data.buckets,
            batch_size=self.settings.training.batch_size,
            known=self.known,
        )

    def task(self, spec: ModelSpec, data: SentenceCorpus | None, vocabulary: Vocabulary) -> SentencePairs:
        """See `Experiment`."""
        m, embedding = self.settings.model, self.embedding(data, vocabulary)

        def make_model(rngs: nnx.Rngs) -> SentencePairModel:
            return models_lib.SentencePairModel(
                embedding(rngs),
                m.features,
                sick_data.SICK_RATINGS,
                similarity_features=m.similarity_features,
                **self.rare_words(data),
                **self.layers(spec),
                rngs=rngs,
            )

        splits = {} if data is None else data.splits
        return tasks_lib.SentencePairs(splits, make_model, batch_size=self.settings.training.batch_size)

    def split(self, text: str) -> list[str]:
        """See `Experiment`; the words of both sentences."""
        return sentence_data.treebank_words(text)

    def tokenize(self, vocabulary: Vocabulary, text: str) -> str:
        """See `Experiment`; each of the two sentences is tokenized on its own."""
        return "\t".join(" ".join(sentence_data.treebank_words(part)) for part in text.split("\t"))

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[dict[str, np.ndarray], list[str]]:
        """See `Experiment`.

        Raises:
            UserError: If the text does not consist of two sentences.
        """
        sentences = [sentence_data.treebank_words(part) for part in text.split("\t")]
        if len(sentences) != 2 or not all(sentences):
            shown = text.strip() if len(text) < 80 else f"{text[:80]}…"
            raise UserError(f"a line has two sentences apart by a tab; got {shown!r}")
        inputs = sentence_data.pair_inputs(*map(vocabulary.encode, sentences))
        return inputs, vocabulary.decode(inputs["tokens"])

    def format_prediction(self, vocabulary: Vocabulary, predicted: Any, probability: float) -> str:
        """See `Experiment`; the predicted rating."""
        return f"{float(predicted):.2f}"

    def read(self, trained: Trained, text: str) -> Reading:
        """See `Experiment`; a choice that reaches into the other sentence is shown as one outside the text.

        It is shown as one before the text, or after it for the layer that reads from the end.
        """
        reading = super().read(trained, text)
        first = int((self.encode(trained.vocabulary, text)[0]["sentences"] == 0).sum())
        before_text = {t: t + 1 for t, k in enumerate(reading.skips) if k and t >= first > t - k}
        skips, weights = _moved(reading.skips, reading.weights, before_text)
        reading = dataclasses.replace(reading, skips=skips, weights=weights)
        if reading.backward is None:
            return reading
        end = len(reading.words)
        after_text = {t: end - t for t, k in enumerate(reading.backward) if k and t < first <= t + k}
        skips, weights = _moved(reading.backward, reading.backward_weights, after_text)
        return dataclasses.replace(reading, backward=skips, backward_weights=weights)


def _moved(
    skips: Sequence[int], weights: np.ndarray | None, shown: Mapping[int, int]
) -> tuple[list[int], np.ndarray | None]:
    """Return the skips and their weights, with `shown[t]` as the k of word t, which may exceed K."""
    moved = [shown.get(t, k) for t, k in enumerate(skips)]
    if weights is None:
        return moved, None
    padded = np.pad(weights, ((0, 0), (0, max(0, max(moved) - weights.shape[1]))))
    for t, k in shown.items():
        padded[t, k - 1] = weights[t, skips[t] - 1]
    return moved, padded


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
