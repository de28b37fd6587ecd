"""The model and the task of all language models, and how they read a text."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.corpora import find_language_corpus
from dynskip_jax.data.vocabularies import EOS, Vocabulary, character_table
from dynskip_jax.experiments.language_config import LanguageSettings
from dynskip_jax.models.language_model import LanguageModel, LanguageModelDropout
from dynskip_jax.nn import CharEmbedding, initializers
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.pictures import draw_skips
from dynskip_jax.runs.spec import ModelSpec
from dynskip_jax.tasks.language import LanguageModelling
from dynskip_jax.tasks.learner import padded

# Filters of each width, from 1, and highway layers above.
_CHARACTERS: Mapping[str, dict[str, Any]] = {
    "charlm": dict(maps=(50, 100, 150, 200, 200, 200, 200), num_highway=2),
    "charlm_small": dict(maps=(25, 50, 75, 100, 125, 150), num_highway=1),
}
# Presets of a paper's size train for hours. Without the paper's data they do not begin.
_LARGE_PRESETS = ("paper", "released", "charlm", "awd")
_NEXT_WORDS = 5  # number of most probable next words that are shown


class TextModelling(LanguageModelling):
    """Predict the next word of a text."""

    def __init__(
        self, spec: ModelSpec, settings: LanguageSettings, data: Dataset | None, vocabulary: Any
    ):
        training = settings.training
        recipe = settings.model.recipe
        super().__init__(
            None if data is None else data.content,
            partial(_make_model, spec, settings, vocabulary),
            batch_size=training.batch_size,
            num_steps=training.num_steps,
            random_lengths=recipe == "awd",
            restart_buffer=recipe == "released",
            activation_coefs=settings.model.activation_coefs,
        )
        self.vocabulary = vocabulary


class WordModelling(TextModelling):
    """Predict the next word of a text."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the text."""
        data = settings.data
        or_embedded = settings.run.preset not in _LARGE_PRESETS
        corpus = find_language_corpus(data.data, data.dataset, or_embedded=or_embedded)
        about = (corpus.name, corpus.sizes, corpus.fingerprint, corpus.source)
        return Dataset(*about, content=corpus, vocabulary=corpus.vocabulary, lines=[corpus.about])

    @override
    def encode(self, text: str) -> tuple[np.ndarray, list[str]]:
        """Return the tokens of a text, which begin with `<eos>`; unknown ones become `<unk>`."""
        tokens = self.vocabulary.encode([EOS, *self.vocabulary.split(text)])
        return tokens, self.vocabulary.decode(tokens)


def read_words(trained: Trained, text: str) -> Reading:
    """Read a text; `probabilities` are those of each word, given the words before it."""
    vocabulary = trained.vocabulary
    tokens, words = trained.encode(text)
    # Padded, and cut on the host: each length would be a program.
    given = jnp.asarray(padded(tokens))[None]
    rows = trained.model(given, policy=trained.policy, rngs=jax.random.key(0))
    found = jax.device_get((jax.nn.log_softmax(rows.logits), rows.decisions, rows.observations))
    log_probs, *choices = jax.tree.map(lambda leaf: leaf[0, : len(tokens)], found)
    # Row t predicts word t + 1, so the first word has no probability.
    before = np.take_along_axis(log_probs[:-1], tokens[1:, None], axis=1)[:, 0]
    # The last state predicts the word after the text.
    best = np.argsort(-log_probs[-1])[:_NEXT_WORDS]
    names = [vocabulary.tokens[i] for i in best]
    likeliest = zip(names, np.exp(log_probs[-1, best]), strict=True)
    listed = ", ".join(f"{name!r} {probability:.3f}" for name, probability in likeliest)
    return Reading(
        words,
        unknown=[word for word in vocabulary.split(text) if word not in vocabulary.index],
        probabilities=[math.nan, *np.exp(before).tolist()],
        prediction=f"next {vocabulary.unit} {listed}",
        **trained.choices(*choices, len(words)),
    )


def draw_words(trained: Trained) -> None:
    """Draw which k the agent chooses at the most frequent words of dev."""
    vocabulary = trained.vocabulary
    draw_skips(trained, vocabulary.unit, "inputs", list(vocabulary.tokens))


def _make_model(
    spec: ModelSpec, settings: LanguageSettings, vocabulary: Vocabulary, rngs: nnx.Rngs
) -> LanguageModel:
    m = settings.model
    embedding = None
    weight_init = initializers.uniform(m.init_scale)
    if m.recipe in _CHARACTERS:
        how = _CHARACTERS[m.recipe]
        embedding = CharEmbedding(
            character_table(vocabulary.tokens)[0],
            char_features=15,
            widths=tuple(range(1, len(how["maps"]) + 1)),
            **how,
            weight_init=weight_init,
            dtype=spec.dtype,
            rngs=rngs,
        )
    # One rate stands for all three places.
    inputs, hidden, outputs = (m.dropout * 3)[:3]
    rates = dict(words=m.dropout_words, inputs=inputs, hidden=hidden, outputs=outputs)
    # With tied weights the last state has the size of the embedding.
    last = m.embedding_features if m.recipe == "awd" and m.embedding_features else m.features
    sizes = (m.features,) * (m.num_layers - 1) + (last,)
    return LanguageModel(
        len(vocabulary),
        sizes,
        **spec.layer_options(),
        embedding=embedding,
        embedding_features=m.embedding_features,
        tied=m.recipe == "awd",
        copy=spec.copy,
        restart_token=vocabulary.restart_token,
        dropout=LanguageModelDropout(**rates, weights=m.dropout_weights, variational=m.locked),
        weight_init=weight_init,
        cell=_cell_options(spec, settings, sizes),
        rngs=rngs,
    )


def _cell_options(
    spec: ModelSpec, settings: LanguageSettings, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the options of each layer's cell, bottom first."""
    m = settings.model
    layers = []
    for size, has_skip in zip(sizes, spec.has_skip, strict=True):
        # Merity et al. (2018) draw weights from U(±1/√h); Zaremba et al. (2014) all from one
        # distribution.
        weights = initializers.uniform(size**-0.5 if m.recipe == "awd" else m.init_scale)
        init = dict(kernel_init=weights, recurrent_kernel_init=weights, bias_init=weights)
        agent = dict(agent_init=F.Initializers(weights, bias=weights)) | dict(spec.cell_options)
        layers.append(dict(zoneout=m.zoneout, **init) | (agent if has_skip else {}))
    if m.recipe == "released":
        layers[-1]["recurrent_kernel_init"] = nnx.initializers.orthogonal()
    return layers
