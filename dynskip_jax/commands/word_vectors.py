"""Train word vectors of one's own, as a file for `--embeddings`."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dynskip_jax.config import Count, Seed, Size
from dynskip_jax.data.corpora import find_imdb
from dynskip_jax.data.files import DATA_VARIABLE, named_folder
from dynskip_jax.data.language import text_lines
from dynskip_jax.data.sentences import LINE_BREAK, treebank_words
from dynskip_jax.data.tagged import find_entity_corpus, find_part_of_speech_corpus
from dynskip_jax.data.vocabularies import UNK, normal_form
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs
from dynskip_jax.training.files import check_new, write_atomically
from dynskip_jax.training.progress import Progress

Sentences = Sequence[Sequence[str]]

# WikiText separates the marks inside words and numbers: `state @-@ of`, `1 @,@ 000`.
_JOINED = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}
_MOST_WORDS = 10_000  # largest number of words of a sentence that gensim reads


def word_vectors(
    output: Path,
    text: tuple[Path, ...] | None = None,
    width: Size = 100,
    epochs: Count = 5,
    window: Count = 5,
    min_count: Count = 3,
    digits: Literal["keep", "nine", "zero"] = "nine",
    lowercase: bool = True,
    seed: Seed = 0,
) -> None:
    """Train word vectors of one's own: a skip-gram model of texts at hand, as a file for `--embeddings`.

    Without --text it reads the training texts found below $DYNSKIP_DATA_DIR: wikitext2, imdb, conll2003,
    ud_ewt. Texts of dev and test are not read. One thread does the work, so that the same texts give the same
    vectors. It needs the extra `vectors`.

    Args:
        output: File to write.
        text: Text files, plain or .gz, separated by commas, in place of the known texts.
        width: Size of a vector.
        epochs: Passes over the texts.
        window: Number of words on each side that are predicted.
        min_count: Give no vector to words that occur less often.
        digits: Replace digits by 9 or 0, as taggers do.
        lowercase: Lowercase words, as taggers do.
        seed: Seed of the initial vectors and of sampling.
    """
    check_new(output)
    texts = {str(path): _plain(path) for path in text} if text else known_texts()
    if not texts:
        raise UserError(f"no text found: name files with --text, or a folder with ${DATA_VARIABLE}")
    sentences = [
        [normal_form(word, lowercase=lowercase, digits=digits) for word in words]
        for words in itertools.chain(*texts.values())
    ]
    for name, own in texts.items():
        print(f"{name}: {sum(map(len, own)):,} words")
    words, vectors = skip_gram(
        sentences,
        width=width,
        epochs=epochs,
        window=window,
        min_count=min_count,
        seed=seed,
    )
    write_word_vectors(output, words, vectors)
    print(f"{len(words):,} vectors of {width} numbers in {output}")


def known_texts() -> dict[str, Sentences]:
    """Return the training texts of the corpora found below `$DYNSKIP_DATA_DIR`, by the corpus's name."""
    found: dict[str, Sentences] = {}
    for name, read in _READERS.items():
        folder = named_folder(name)
        if folder is not None:
            found[name] = read(folder)
    return found


def skip_gram(
    sentences: Iterable[Sequence[str]], *, width: int, epochs: int, window: int, min_count: int, seed: int
) -> tuple[list[str], np.ndarray]:
    """Train a skip-gram model with ten negative samples (Mikolov et al. 2013).

    Args:
        sentences: Words in their normal form. Pairs of words do not cross the end of a sentence.
        width: Size of a vector.
        epochs: Number of passes over the sentences.
        window: Largest number of words on each side that are predicted.
        min_count: Smallest number of occurrences; rarer words get no vector.
        seed: Seed of the initial vectors and of sampling.

    Returns:
        The words, most frequent first, and their vectors, (words, width), float32.

    Raises:
        UserError: If gensim is not installed, or no word is frequent enough.
    """
    logging.getLogger("gensim").setLevel(logging.ERROR)
    with needs("vectors"):
        from gensim.models import Word2Vec
    # gensim reads at most this many words of a sentence, and silently drops the rest.
    pieces = [
        words[start : start + _MOST_WORDS]
        for words in sentences
        for start in range(0, len(words), _MOST_WORDS)
    ]
    model = Word2Vec(
        vector_size=width, window=window, min_count=min_count, sg=1, negative=10, seed=seed + 1, workers=1
    )
    model.build_vocab(pieces)
    if not model.wv.index_to_key:
        raise UserError(f"no word occurs {min_count} times: give more text, or a smaller --min-count")
    with Progress(epochs * len(pieces), "skip-gram") as progress:

        class Pieces:
            """Iterable over the pieces, which gensim restarts in every epoch; advances the progress bar."""

            def __iter__(self) -> Iterator[Sequence[str]]:
                for words in pieces:
                    progress.advance()
                    yield words

        model.train(Pieces(), total_examples=len(pieces), epochs=epochs)
    order = sorted(model.wv.index_to_key, key=lambda word: (-model.wv.get_vecattr(word, "count"), word))
    return order, np.stack([model.wv[word] for word in order])


def write_word_vectors(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    """Write vectors as a word2vec text file, atomically."""
    lines = [f"{len(words)} {vectors.shape[1]}"]
    for word, vector in zip(words, vectors, strict=True):
        lines.append(" ".join([word, *(f"{number:.5g}" for number in vector)]))
    write_atomically(path, "\n".join(lines) + "\n")


def _plain(path: Path) -> Sentences:
    return [treebank_words(line) for line in text_lines(path) if line.strip()]


def _wikitext(folder: Path) -> Sentences:
    files = sorted(folder.glob("wiki.train.tokens*"))
    if not files:
        raise UserError(f"{folder} has no wiki.train.tokens or wiki.train.tokens.gz")
    sentences = []
    for line in text_lines(files[0]):
        if not line.strip():
            continue
        for mark, joined in _JOINED.items():
            line = line.replace(mark, joined)
        sentences.append([word for word in line.split() if word != UNK])
    return sentences


def _reviews(folder: Path) -> Sentences:
    reviews, _ = find_imdb(folder)
    return [treebank_words(LINE_BREAK.sub(" ", review.text)) for review in reviews["train"]]


def _entities(folder: Path) -> Sentences:
    return [sentence.words for sentence in find_entity_corpus("conll2003", folder).splits["train"]]


def _treebank(folder: Path) -> Sentences:
    return [sentence.words for sentence in find_part_of_speech_corpus("ud", folder).splits["train"]]


_READERS = {"wikitext2": _wikitext, "imdb": _reviews, "conll2003": _entities, "ud_ewt": _treebank}
