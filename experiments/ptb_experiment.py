"""Penn Treebank language models: their data, models, tables and pictures."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.analysis.reading import read_tokens
from dynskip_jax.data import LanguageCorpus, Vocabulary, find_language_corpus
from dynskip_jax.data.characters import character_table
from dynskip_jax.data.embedded import TOKEN
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.vocabulary import EOS
from dynskip_jax.errors import UserError
from dynskip_jax.functional import Previous, TimeSkip
from dynskip_jax.models import LanguageModel, LanguageModelDropout
from dynskip_jax.models.copying import Copy
from dynskip_jax.nn import CharEmbedding
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.runs.trained import finished_runs, selected_params
from dynskip_jax.tasks import LanguageModelling, Learner
from dynskip_jax.training.asgd import averaging_rule
from dynskip_jax.training.loop import FitSettings
from dynskip_jax.training.schedule import Schedule, decay_after, decay_on_plateau
from experiments.experiment import Experiment, TextReading
from experiments.ptb import COMMAND
from experiments.trained import Trained, kept_vocabulary

# Dev and test perplexities of Gui et al. (2019), Table 3, averages of ten runs; and what Merity et al. (2018)
# report for their recipe.
PUBLISHED = {
    "words": {
        "lstm": ("paper: Regularized LSTM", 86.2, 82.7),
        "fixed:3": ("paper: fixed skip 3", 85.3, 81.5),
        "fixed:5": ("paper: fixed skip 5", 86.2, 82.0),
        "attention:5": ("paper: attention", 85.1, 81.4),
        "dynamic:5": ("paper: dynamic skip, λ=1, K=5", 82.5, 78.5),
    },
    "characters": {
        "lstm": ("paper: CharLM", 82.0, 78.9),
        "fixed:3": ("paper: CharLM, fixed skip 3", 83.6, 80.2),
        "fixed:5": ("paper: CharLM, fixed skip 5", 84.9, 80.9),
        "attention:5": ("paper: CharLM with attention", 82.2, 79.0),
        "dynamic:5": ("paper: CharLM, dynamic skip, λ=1, K=5", 79.9, 76.5),
    },
    "awd": {"lstm": ("Merity et al. (2018): AWD-LSTM", 60.0, 57.3)},
}
PUBLISHED_SIZES = {"words": (2, 650), "characters": (2, 650), "awd": (3, 1150)}  # layers and their units

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEXT_WORDS = 5  # the most probable words after a text that are shown


class PTB(Experiment):
    """See `Experiment`."""

    command = COMMAND
    columns = {  # noqa: RUF012 (read only)
        "dev_perplexity": ("dev perplexity", ".2f"),
        "test_perplexity": ("test perplexity", ".2f"),
        "test_perplexity_sampled": ("test, sampled", ".2f"),
        "test_perplexity_averaged": ("test, averaged", ".2f"),
    }
    curves = ("dev_perplexity",)
    samples = 10
    sample_text = "the company said it will buy a N N stake in the bank"
    final_rows = 1  # one stream for each split: no token without its past

    def load_data(self) -> LanguageCorpus:
        """See `Experiment`."""
        data = self.settings.data
        return find_language_corpus(data.data, data.dataset, min_count=data.min_count)

    def about_data(self, data: LanguageCorpus) -> Sequence[str]:
        """See `Experiment`; which words are unknown, and how many."""
        return [data.about_unknown] if data.about_unknown else []

    def vocabulary(self, data: LanguageCorpus) -> Vocabulary:
        """See `Experiment`."""
        return data.vocabulary

    def task(
        self,
        model: str,
        data: LanguageCorpus | None,
        vocabulary: Vocabulary,
        kind: Callable[..., LanguageModelling] = LanguageModelling,
    ) -> LanguageModelling:
        """See `Experiment`; `kind` may be another task that reads the same model."""
        training = self.settings.training
        return kind(
            data,
            partial(self._make_model, model, vocabulary.tokens),
            batch_size=training.batch_size,
            num_steps=training.num_steps,
            random_lengths=training.random_lengths,
            restart_buffer=self.settings.agent.restart_buffer,
            activation_coef=training.activation_coef,
            temporal_coef=training.temporal_coef,
        )

    def _make_model(self, model: str, words: Sequence[str], rngs: nnx.Rngs) -> LanguageModel:
        m = self.settings.model
        embedding, weight_init = None, uniform(m.init_scale)
        if m.embedding == "characters":
            embedding = CharEmbedding(
                character_table(words)[0],
                char_features=m.char_features,
                widths=tuple(range(1, len(m.char_maps) + 1)),
                maps=m.char_maps,
                num_highway=m.num_highway,
                weight_init=weight_init,
                dtype=self.dtype,
                rngs=rngs,
            )
        return LanguageModel(
            len(words),
            self.sizes(),
            (Previous(),) * (m.num_layers - 1) + (self.skip(model),),
            **self.recurrent_options(),
            embedding=embedding,
            embedding_features=m.embedding_features,
            tied=m.tied,
            copy=self._copy(model),
            dropout=self.all_dropout(),
            dtype=self.dtype,
            weight_init=weight_init,
            layer_options=self.cell_options_of_layers(),
            rngs=rngs,
        )

    def sizes(self) -> tuple[int, ...]:
        """Returns the size of each layer's state, bottom first; tied, the last is as large as a word."""
        m = self.settings.model
        last = m.embedding_features if m.tied and m.embedding_features else m.features
        return (m.features,) * (m.num_layers - 1) + (last,)

    def all_dropout(self) -> LanguageModelDropout:
        """Returns what is dropped, and where."""
        m = self.settings.model
        return LanguageModelDropout(
            words=m.dropout_words,
            inputs=m.dropout if m.dropout_inputs is None else m.dropout_inputs,
            hidden=m.dropout,
            outputs=m.dropout if m.dropout_outputs is None else m.dropout_outputs,
            weights=m.dropout_weights,
            variational=m.locked,
        )

    def cell_options_of_layers(self) -> tuple[dict[str, Any], ...]:
        """Returns the options of each layer's cell, bottom first.

        Zaremba et al. draw every weight from one uniform distribution; the top layer may differ.
        """
        m, layers = self.settings.model, []
        zoneout = m.zoneout if len(m.zoneout) > 1 else m.zoneout[0]
        for size in self.sizes():
            weights = uniform(size**-0.5 if m.recurrent_init == "by_size" else m.init_scale)
            init = dict(kernel_init=weights, recurrent_kernel_init=weights, bias_init=weights)
            layers.append(dict(zoneout=zoneout, **init))
        weights = layers[-1]["kernel_init"]
        layers[-1] |= dict(agent_kernel_init=weights, agent_bias_init=weights) | self.cell_options()
        if m.recurrent_init == "orthogonal":
            layers[-1]["recurrent_kernel_init"] = nnx.initializers.orthogonal()
        return tuple(layers)

    def schedule(self, model: str, rate: Any) -> Schedule:
        """See `Experiment`."""
        training = self.settings.training
        if training.plateau is not None:
            return decay_on_plateau(rate, 1 / training.decay, threshold=training.plateau, floor=0.005)
        return decay_after(rate, 1 / training.decay, training.decay_after)

    def optimizer_options(self, model: str) -> dict[str, Any]:
        """See `Experiment`."""
        return {
            "kind": "sgd",
            "weight_decay": self.settings.training.weight_decay,
            # Where words are copied, an agent has a gradient beside its rewards.
            "frozen": ("agent",) if self.is_untrained(model) else (),
        }

    def check_models(self, models: Sequence[str]) -> None:
        """See `Experiment`; copying needs a choice to go by."""
        super().check_models(models)
        copy = self.settings.model.copy
        if copy != "none" and all(self._copy(model) == "none" for model in models):
            raise UserError(
                f"--copy {copy} goes by a choice among several states, and {', '.join(models)} makes none: "
                "name a model such as dynamic:200"
            )

    def choices_matter(self, model: str, **selected: Any) -> bool:
        """See `Experiment`; a word may be copied by the choice."""
        by_choice = self._copy(model) == "chosen" and self.skip(model).is_stochastic
        return super().choices_matter(model, **selected) or by_choice

    def copies_in_expectation(self, model: str) -> bool:
        """See `Experiment`."""
        return self._copy(model) == "expected"

    def beyond_name(self, model: str) -> dict[str, Any]:
        """See `Experiment`; with how it copies."""
        copy = self._copy(model)
        return super().beyond_name(model) | ({} if copy == "none" else {"copy": copy})

    def _copy(self, model: str) -> Copy:
        """How a model copies: one that does not say how probable each of several states is to it does not."""
        skip = self.skip(model)
        chooses = skip.max_skip > 1 and type(skip).log_distribution is not TimeSkip.log_distribution
        return self.settings.model.copy if chooses else "none"

    def fit_settings(self, model: str, learner: Learner) -> FitSettings:
        """See `Experiment`; with averages of the iterates, and earlier parameters to start from."""
        training = self.settings.training
        start = training.start_from
        return dataclasses.replace(
            super().fit_settings(model, learner),
            average=averaging_rule(training.average, training.average_interval),
            start=None if start is None else self._trained(model, learner, start),
        )

    def _trained(self, model: str, learner: Learner, run_dir: str) -> Any:
        """The parameters of an earlier run of a model, of the same seeds."""
        runs = finished_runs(run_dir)
        if model not in runs:
            raise UserError(f"--start-from {run_dir} holds no finished run of {model}")
        if kept_vocabulary(runs[model], self.vocabulary_type) != learner.task.corpus.vocabulary:
            raise UserError(f"--start-from {run_dir} was trained on other words than those of this data")
        return selected_params(runs[model], learner.abstract_params(), len(learner.seeds))

    def draw(self, model: str, learner: Learner, params: Any, keys: Any, folder: Path, member: int) -> None:
        """Which k the agent chooses at the corpus's most frequent words."""
        skip, corpus = self.skip(model), learner.task.corpus
        if not skip.has_agent:
            return
        read = learner.choices(params, "dev", keys, layer=-1)
        parts = [(batch.inputs[batch.mask], chosen[member][batch.mask]) for batch, chosen in read]
        tokens, chosen = (np.concatenate(part) for part in zip(*parts, strict=True))
        frequent = np.argsort(-np.bincount(tokens), kind="stable")[:20]
        counts = np.zeros((len(frequent), skip.max_skip), np.int64)
        for row, word in enumerate(frequent):
            np.add.at(counts[row], chosen[tokens == word] - 1, 1)
        plots.action_distribution(
            counts,
            folder / "skips_by_word.png",
            f"{model}: how far back the agent reaches after each word",
            note=f"{corpus.name}, dev, greedy, the 20 most frequent words, seed {learner.seeds[member]}",
            rows=[corpus.vocabulary.tokens[word] for word in frequent],
        )

    def note(self, models: Sequence[str], data: LanguageCorpus) -> str:
        """What a table of this run must say."""
        if data.name != "ptb":
            return f"Perplexities on {data.name}: not comparable with any published on PTB."
        own = (self.settings.model.num_layers, self.settings.model.features)
        theirs = PUBLISHED_SIZES[self._kind]
        if own == theirs or not self.published(models, data):
            return ""
        sizes = ["{} x {}".format(*size) for size in (own, theirs)]
        return f"The models of this run have {sizes[0]} units, published ones {sizes[1]}: not comparable."

    @property
    def _kind(self) -> str:
        return "awd" if self.settings.training.average != "none" else self.settings.model.embedding

    def published(
        self, models: Sequence[str], data: LanguageCorpus
    ) -> Sequence[tuple[str, Mapping[str, float]]]:
        """The paper's rows, for its corpus alone."""
        if data.name != "ptb":
            return []
        rows = [PUBLISHED[self._kind][model] for model in models if model in PUBLISHED[self._kind]]
        return [(name, {"dev_perplexity": dev, "test_perplexity": test}) for name, dev, test in rows]

    def words_of_typed(self, vocabulary: Vocabulary, text: str) -> list[str]:
        """See `Experiment`; without capitals, without marks, and with N for numbers, where the vocabulary has
        it so. Contractions are split (is n't), or not, in the way that leaves fewer words unknown."""
        known = vocabulary.index
        if all(token == token.lower() for token in known if token != "N"):
            text = text.lower()
        ways = []
        for words in (TOKEN.findall(text), treebank_words(text, lowercase=False)):
            if "N" in known:
                words = ["N" if _NUMBER.fullmatch(word) and word not in known else word for word in words]
            # A mark that the corpus lacks is no word of it.
            ways.append([word for word in words if word in known or any(map(str.isalnum, word))])
        return min(ways, key=lambda words: sum(word not in known for word in words))

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; the words are led by `<eos>`, and `<unk>` stands for those not known."""
        tokens = vocabulary.encode([EOS, *text.split()])
        return tokens, vocabulary.decode(tokens)

    def read(self, trained: Trained, text: str) -> TextReading:
        """See `Experiment`; probabilities are of each word after those before it."""
        tokens, words = self.encode(trained.vocabulary, text)
        found = read_tokens(trained.model, jnp.asarray(tokens), jax.random.key(0), policy=trained.policy)
        log_probs = np.asarray(found.log_probs)
        before = np.take_along_axis(log_probs[:-1], tokens[1:, None], axis=1)[:, 0]
        best = np.argsort(-log_probs[-1])[:_NEXT_WORDS]
        listed = ", ".join(f"{trained.vocabulary.tokens[i]} {np.exp(log_probs[-1, i]):.3f}" for i in best)
        return TextReading(
            words,
            [word for word, kept in zip(text.split(), words[1:], strict=True) if word != kept],
            np.asarray(found.skips).tolist() if trained.shows_choices else [0] * len(words),
            [math.nan, *np.exp(before).tolist()],
            f"next word {listed}",
            weights=lambda: None if found.weights is None else np.asarray(found.weights),
        )
