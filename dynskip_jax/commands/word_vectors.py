"""Train word vectors of one's own, as a file for `--embeddings`."""

import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dynskip_jax.config import Count, Size
from dynskip_jax.data.corpora import find_imdb
from dynskip_jax.data.files import DATA_VARIABLE, named_folder
from dynskip_jax.data.language import text_lines
from dynskip_jax.data.sentences import LINE_BREAK, treebank_words
from dynskip_jax.data.tagged import find_tagged_corpus
from dynskip_jax.data.vocabularies import UNK, normal_form
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs
from dynskip_jax.training.files import check_new, write_atomically
from dynskip_jax.training.progress import Progress

Sentences = Sequence[Sequence[str]]

# WikiText separates the marks inside words and numbers: `state @-@ of`, `1 @,@ 000`.
_JOINED = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}
_MOST_WORDS = 10_000  # of a sentence; gensim silently drops the rest
_WINDOW, _NEGATIVE, _LEAST_COUNT = 5, 10, 3  # words on each side, negative samples; rarer words get no vector


def word_vectors(
    output: Path, text: tuple[Path, ...] | None = None, width: Size = 100, epochs: Count = 5
) -> None:
    """Train word vectors of one's own: a skip-gram model of texts at hand, as a file for `--embeddings`.

    Without --text it reads the training texts found below $DYNSKIP_DATA_DIR: wikitext2, imdb, conll2003,
    ud_ewt. Texts of dev and test are not read. As in taggers, words are lowercased and digits become 9. One
    thread does the work, so that the same texts give the same vectors. It needs the extra `vectors`.

    Args:
        output: File to write.
        text: Text files, plain or .gz, separated by commas, in place of the known texts.
        width: Size of a vector.
        epochs: Passes over the texts.
    """
    check_new(output)
    texts = {str(path): _plain(path) for path in text} if text else known_texts()
    if not texts:
        raise UserError(f"no text found: name files with --text, or a folder with ${DATA_VARIABLE}")
    for name, sentences in texts.items():
        print(f"{name}: {sum(map(len, sentences)):,} words")
    pieces = [
        [normal_form(word, lowercase=True, digits="nine") for word in words[start : start + _MOST_WORDS]]
        for words in itertools.chain(*texts.values())
        for start in range(0, len(words), _MOST_WORDS)
    ]
    words, vectors = skip_gram(pieces, width, epochs)
    lines = [f"{len(words)} {width}"]  # a word2vec text file
    for word, vector in zip(words, vectors, strict=True):
        lines.append(" ".join([word, *(f"{number:.5g}" for number in vector)]))
    write_atomically(output, "\n".join(lines) + "\n")
    print(f"{len(words):,} vectors of {width} numbers in {output}")


def known_texts() -> dict[str, Sentences]:
    """Return the training texts of the corpora found below `$DYNSKIP_DATA_DIR`, by the corpus's name."""
    folders = {name: named_folder(name) for name in _READERS}
    return {name: _READERS[name](folder) for name, folder in folders.items() if folder is not None}


def skip_gram(sentences: Sentences, width: int, epochs: int) -> tuple[list[str], np.ndarray]:
    """Train a skip-gram model with negative samples (Mikolov et al. 2013).

    Returns:
        The words, most frequent first, and their vectors, (words, width), float32.
    """
    logging.getLogger("gensim").setLevel(logging.ERROR)
    with needs("vectors"):
        from gensim.models import Word2Vec
    how = dict(window=_WINDOW, min_count=_LEAST_COUNT, sg=1, negative=_NEGATIVE, seed=1, workers=1)
    model = Word2Vec(vector_size=width, **how)
    model.build_vocab(sentences)
    if not model.wv.index_to_key:
        raise UserError(f"no word occurs {_LEAST_COUNT} times: give more text")
    with Progress(epochs * len(sentences), "skip-gram") as progress:

        class Read:
            """The sentences, which gensim reads again in every epoch, beside a progress bar."""

            def __iter__(self) -> Iterator[Sequence[str]]:
                for words in sentences:
                    progress.advance()
                    yield words

        model.train(Read(), total_examples=len(sentences), epochs=epochs)
    order = sorted(model.wv.index_to_key, key=lambda word: (-model.wv.get_vecattr(word, "count"), word))
    return order, np.stack([model.wv[word] for word in order])


def _plain(path: Path) -> Sentences:
    return [treebank_words(line) for line in text_lines(path) if line.strip()]


def _wikitext(folder: Path) -> Sentences:
    files = sorted(folder.glob("wiki.train.tokens*"))
    if not files:
        raise UserError(f"{folder} has no wiki.train.tokens or wiki.train.tokens.gz")
    sentences = []
    for line in text_lines(files[0]):
        for mark, joined in _JOINED.items():
            line = line.replace(mark, joined)
        sentences.append([word for word in line.split() if word != UNK])
    return [words for words in sentences if words]


def _reviews(folder: Path) -> Sentences:
    reviews, _ = find_imdb(folder)
    return [treebank_words(LINE_BREAK.sub(" ", review.text)) for review in reviews["train"]]


def _entities(folder: Path) -> Sentences:
    return [sentence.words for sentence in find_tagged_corpus("conll2003", folder).splits["train"]]


def _treebank(folder: Path) -> Sentences:
    return [sentence.words for sentence in find_tagged_corpus("ud", folder).splits["train"]]


_READERS = {"wikitext2": _wikitext, "imdb": _reviews, "conll2003": _entities, "ud_ewt": _treebank}
