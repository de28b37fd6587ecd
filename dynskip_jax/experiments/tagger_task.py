"""Data, model, tables and texts of all taggers, and their tasks."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from flax import nnx
from typing_extensions import override

from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.batches import with_buckets
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tag_schemes import allowed_transitions, convert_tags
from dynskip_jax.data.tagged import (
    TaggedCorpus,
    find_tagged_corpus,
    tagged_examples,
    with_entities,
)
from dynskip_jax.data.tagged_files import LinesToTag, lines_to_tag, tagged_lines
from dynskip_jax.data.vocabularies import (
    CAPITALS,
    UNK,
    TaggerVocabulary,
    TokenIds,
    normal_form,
    tagger_vocabulary,
)
from dynskip_jax.experiments.tagger_config import TaggerSettings
from dynskip_jax.experiments.vectors import (
    begin_with,
    having,
    read_vectors,
    width_of_vectors,
    with_vectors,
)
from dynskip_jax.models.tagger import Tagger
from dynskip_jax.nn import CharAffixes, CharCNN
from dynskip_jax.nn.initializers import by_size
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.pictures import draw_skips
from dynskip_jax.runs.spec import ModelSpec
from dynskip_jax.tasks.tagging import Tagging
from dynskip_jax.terminal.messages import shares

_CHAR_FEATURES = 30
_CHAR_OUTPUTS = 30
_CHAR_WIDTH = 3
_SMALL_FEATURES = 5
_COLUMN_FEATURES = 20
# Details of published systems: filters, dropout of characters, capitals, words at a time, options
# of cells, and whether agents are rewarded for words.
_USUAL = dict(
    filters=_CHAR_OUTPUTS,
    char_dropout=0.0,
    capitals=_SMALL_FEATURES,
    window=1,
    cell={},
    by_word=True,
)
_GLOROT = nnx.initializers.glorot_uniform()
_MA = dict(kernel_init=_GLOROT, recurrent_kernel_init=_GLOROT, forget_bias=1.0)
_WU = dict(kernel_init=nnx.initializers.variance_scaling(0.01, "fan_in", "normal"))
_RECIPES: dict[str, dict[str, Any]] = {
    "none": _USUAL,
    "ma2016": {**_USUAL, "char_dropout": 0.5, "capitals": 0, "cell": _MA, "by_word": False},
    "ncrfpp": {**_USUAL, "filters": 50, "capitals": 0},
    "wu2016": {**_USUAL, "window": 3, "cell": _WU, "by_word": False},
}


def dataset_of(
    corpus: TaggedCorpus, tags: Sequence[str], settings: TaggerSettings, lines: Sequence[str] = ()
) -> Dataset:
    """Return a corpus as a data set, with the vocabulary of words and of `tags` to predict."""
    m = settings.model
    path = settings.data.embeddings
    train = corpus.splits["train"]
    how = dict(lowercase=m.lowercase, digits=m.digits)
    all_words = {split: [w for s in of for w in s.words] for split, of in corpus.splits.items()}
    # Only vectors of words that occur are read, because their files are large.
    forms = {normal_form(word, **how) for words in all_words.values() for word in words}
    read = read_vectors(path, forms, m.embedding_features)
    vocabulary = tagger_vocabulary(
        (sentence.words for sentence in train),
        tags,
        **how,
        more_words=having(forms, read),
        columns=(sentence.columns for sentence in train),
        scheme=corpus.scheme,
    )
    unknown = {
        s: sum(not vocabulary.knows(w) for w in words) / len(words)
        for s, words in all_words.items()
    }
    lines = [*corpus.notes, *lines, f"words that are not known: {shares(unknown)}"]
    about = (
        corpus.name,
        {**corpus.sizes, "words": len(vocabulary.words)},
        corpus.fingerprint,
        corpus.source,
    )
    dataset = Dataset(*about, content=corpus, vocabulary=vocabulary, lines=lines)
    return with_vectors(dataset, path, vocabulary.words, read, m.embedding_features)


class SentenceTagging(Tagging):
    """Tag the words of sentences; tags of entities follow BIOES."""

    settings_of_files = staticmethod(width_of_vectors)

    def __init__(
        self,
        spec: ModelSpec,
        settings: TaggerSettings,
        data: Dataset | None,
        vocabulary: TaggerVocabulary,
    ):
        batch_size = settings.training.batch_size
        corpus = {} if data is None else data.content.splits
        index = {tag: i for i, tag in enumerate(vocabulary.tags)}
        # Dev and test may have tags that train lacks: no prediction of them is right.
        unknown = index.get(UNK)
        splits = {}
        gold = {}
        for split, sentences in corpus.items():
            gold[split] = [sentence.tags for sentence in sentences]
            ids = [[index.get(tag, unknown) for tag in tags] for tags in gold[split]]
            splits[split] = tagged_examples(sentences, ids, vocabulary)
        is_softmax = settings.model.output == "softmax"
        super().__init__(
            with_buckets(splits, batch_size) if splits else {},
            partial(_make_model, spec, settings, vocabulary, data and data.vectors),
            tags=vocabulary.tags,
            scheme=None if vocabulary.scheme is None else "BIOES",
            gold=gold,
            rewards_words=_RECIPES[settings.model.recipe]["by_word"],
            # The most probable tags cost a search in a CRF, so they are found only where they are
            # needed.
            decode_in_training=is_softmax or settings.agent.reward == "correct",
            unknown_tag=unknown,
            batch_size=batch_size,
        )
        self.vocabulary = vocabulary

    @override
    def encode(self, text: str) -> tuple[TokenIds, list[str]]:
        """Return the ids of the words of a text, and the words, which are read by characters."""
        words = text.split()
        return self.vocabulary.encode(words), words


class EntityTagging(SentenceTagging):
    """Tag entities or chunks."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the sentences; tags are `O`, and each entity type with all letters of BIOES."""
        data = settings.data
        how = dict(tag_column=data.tag_column, beside=data.columns or ())
        corpus = with_entities(find_tagged_corpus(data.dataset, data.data, **how), data.scheme)
        return dataset_of(corpus, corpus.entity_tags, settings)


class WordTagging(SentenceTagging):
    """Tag every word."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the sentences; words of dev and test whose tag train lacks count as wrong."""
        data = settings.data
        how = dict(tag=data.tag, tag_column=data.tag_column)
        corpus = find_tagged_corpus(data.dataset, data.data, **how)
        tags = corpus.train_tags
        held_out = [*corpus.splits["dev"], *corpus.splits["test"]]
        found = [tag for sentence in held_out for tag in sentence.tags]
        lines = []
        if missing := {*found} - {*tags}:
            count = sum(tag in missing for tag in found)
            lines = [
                f"{count:,} words of dev and test have {len(missing):,} tags that train lacks: "
                "counted as wrong"
            ]
            tags = (*tags, UNK)
        return dataset_of(corpus, tags, settings, lines)


def read_tags(trained: Trained, text: str) -> Reading:
    """Read a text; `probabilities` are the marginal probabilities of each word's tag."""
    task = trained.learner.task
    inputs, words = task.encode(text)
    found, best = trained.learner.read(trained.params, inputs, len(words), trained.policy)
    # The best sequence as a whole: its tags may not be the most probable ones word by word.
    best = np.asarray(best)
    marginals = np.asarray(found.log_probs.marginals)
    probabilities = np.exp(np.take_along_axis(marginals, best[:, None], axis=1)[:, 0])
    tags = written([task.tags[tag] for tag in best], task.scheme)
    pairs = [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
    return Reading(
        pairs,
        unknown=[word for word in dict.fromkeys(words) if not trained.vocabulary.knows(word)],
        probabilities=probabilities.tolist(),
        prediction=f"{' '.join(pairs)}  ({probabilities.min():.3f})",
        **trained.choices(found.decisions, found.observations, len(words)),
    )


def tag_lines(trained: Trained, lines: Iterable[str], format: str) -> Iterator[tuple[str, bool]]:
    """Yield each sentence with its tags, and whether it has no words."""
    vocabulary = trained.vocabulary
    scheme = trained.learner.task.scheme
    beside = getattr(trained.settings.data, "columns", None) or ()
    for sentence in _sentences(lines, format, beside):
        words = sentence.words
        # A block may have only comments and blank lines, which are written as they are.
        tags = []
        if words:
            ids = vocabulary.encode(words, sentence.columns)
            _, best = trained.learner.read(trained.params, ids, len(words), trained.policy)
            tags = written([vocabulary.tags[k] for k in np.asarray(best)], scheme)
        if format == "columns":
            tagged = tagged_lines(sentence, tags)
        else:
            tagged = [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
        yield "".join(f"{line}\n" for line in tagged), not words


def _sentences(lines: Iterable[str], format: str, beside: Sequence[int]) -> Iterator[LinesToTag]:
    if format == "columns":
        lines = (line.rstrip("\r\n") for line in lines)
        return lines_to_tag(lines, beside=beside)
    split = str.split if format == "words" else partial(treebank_words, lowercase=False)
    return (LinesToTag([], words, [], []) for words in map(split, lines) if words)


def written(tags: Sequence[str], scheme: str | None) -> list[str]:
    """Convert tags to what users see: entity tags (of a scheme) in BIO2, others as they are."""
    return list(tags) if scheme is None else convert_tags(tags, "BIO2")


def draw_tags(trained: Trained) -> None:
    """Draw which k the agent chooses at each tag."""
    draw_skips(trained, "tag", "targets", trained.learner.task.tags)


def _make_model(
    spec: ModelSpec,
    settings: TaggerSettings,
    vocabulary: TaggerVocabulary,
    vectors: Any,
    rngs: nnx.Rngs,
) -> Tagger:
    m = settings.model
    recipe = _RECIPES[settings.model.recipe]
    count = vocabulary.num_characters
    characters = []
    how = dict(
        char_features=_CHAR_FEATURES, dropout=recipe["char_dropout"], dtype=spec.dtype, rngs=rngs
    )
    if m.characters == "cnn":
        characters.append(CharCNN(count, filters=recipe["filters"], width=_CHAR_WIDTH, **how))
    if m.affixes:
        characters.append(
            CharAffixes(count, char_features=_SMALL_FEATURES, count=m.affixes, rngs=rngs)
        )
    # A CRF rules out what BIOES forbids; a softmax at each word cannot.
    has_scheme = vocabulary.scheme is not None and m.output == "crf"
    return Tagger(
        len(vocabulary.words),
        len(vocabulary.tags),
        m.features,
        **spec.layer_options(),
        embedding_features=m.embedding_features,
        # U(±√(3/d)) for words without one.
        word_init=begin_with(vectors, by_size(m.embedding_features)),
        characters=characters,
        capitals=(len(CAPITALS), recipe["capitals"]) if recipe["capitals"] else None,
        # 0 is unknown.
        columns=[(1 + len(values), _COLUMN_FEATURES) for values in vocabulary.columns],
        window=recipe["window"],
        output=m.output,
        allowed=allowed_transitions(vocabulary.tags, "BIOES") if has_scheme else None,
        dropout=m.dropout_rates,
        unknown_rate=m.unknown_rate,
        num_frequent=vocabulary.num_frequent,
        cell=dict(spec.cell_options) | recipe["cell"],
        rngs=rngs,
    )
