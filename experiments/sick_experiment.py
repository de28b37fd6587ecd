"""How alike two sentences are: its data, model and tables."""

from typing import Any

import numpy as np
from flax import nnx

from dynskip_jax.data import Vocabulary
from dynskip_jax.data.sentences import SentenceCorpus, pair_corpus, pair_inputs, treebank_words
from dynskip_jax.data.sick import NAME, NUM_RATINGS, find_sick
from dynskip_jax.errors import UserError
from dynskip_jax.models import SentencePairModel
from dynskip_jax.tasks import SentencePairs
from experiments.experiment import TextReading
from experiments.sentence_models import SentenceExperiment
from experiments.sick import COMMAND
from experiments.trained import Trained


class SICK(SentenceExperiment):
    """See `Experiment`."""

    command = COMMAND
    columns = {  # noqa: RUF012 (read only)
        "dev_pearson": ("dev r", ".4f"),
        "test_pearson": ("test r", ".4f"),
        "test_spearman": ("test ρ", ".4f"),
        "test_mse": ("test MSE", ".4f"),
        "test_pearson_averaged": ("test r, averaged", ".4f"),
        "test_share_read": ("words read", ".1%"),
    }
    curves = ("dev_pearson",)
    sample_text = "a man is playing a guitar\ta man is not playing a guitar"

    def load_data(self) -> SentenceCorpus:
        """See `Experiment`."""
        data = self.settings.data
        pairs, source = find_sick(data.data)
        return pair_corpus(
            NAME,
            pairs,
            source,
            min_count=data.min_count,
            max_words=data.max_words,
            buckets=data.buckets,
        )

    def task(self, model: str, data: SentenceCorpus | None, vocabulary: Vocabulary) -> SentencePairs:
        """See `Experiment`."""
        m, embedding = self.settings.model, self.embedding(data, vocabulary)

        def make_model(rngs: nnx.Rngs) -> SentencePairModel:
            return SentencePairModel(
                embedding(rngs),
                m.features,
                NUM_RATINGS,
                similarity_features=m.similarity_features,
                **self.layers(model),
                rngs=rngs,
            )

        splits = {} if data is None else data.splits
        return SentencePairs(splits, make_model, batch_size=self.settings.training.batch_size)

    def split(self, text: str) -> list[str]:
        """See `Experiment`; the words of both sentences."""
        return treebank_words(text)

    def typed(self, vocabulary: Vocabulary, text: str) -> str:
        """See `Experiment`; each of the two sentences by itself."""
        return "\t".join(" ".join(treebank_words(part)) for part in text.split("\t"))

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[dict[str, np.ndarray], list[str]]:
        """See `Experiment`.

        Raises:
            UserError: there are not two sentences.
        """
        sentences = [treebank_words(part) for part in text.split("\t")]
        if len(sentences) != 2 or not all(sentences):
            shown = text.strip() if len(text) < 80 else f"{text[:80]}…"
            raise UserError(f"a line has two sentences apart by a tab; got {shown!r}")
        inputs = pair_inputs(*map(vocabulary.encode, sentences))
        return inputs, vocabulary.decode(inputs["tokens"])

    def says(self, vocabulary: Vocabulary, predicted: Any, probability: float) -> str:
        """See `Experiment`; the rating."""
        return f"{float(predicted):.2f}"

    def read(self, trained: Trained, text: str) -> TextReading:
        """See `Experiment`; a choice that reaches into the other sentence is shown as one before the text."""
        reading = super().read(trained, text)
        first = int((self.encode(trained.vocabulary, text)[0]["sentences"] == 0).sum())
        before_text = {t: t + 1 for t, k in enumerate(reading.skips) if k and t >= first > t - k}
        skips = [before_text.get(t, k) for t, k in enumerate(reading.skips)]

        def weights() -> np.ndarray | None:
            """The weight of each choice stands under the k that is shown, which may be larger than K."""
            of_k = reading.weights()
            if of_k is None:
                return None
            shown = np.pad(of_k, ((0, 0), (0, max(0, max(skips) - of_k.shape[1]))))
            for t, k in before_text.items():
                shown[t, k - 1] = of_k[t, reading.skips[t] - 1]
            return shown

        return reading._replace(skips=skips, weights=weights)
