"""Word vectors of one's own: a skip-gram model of texts at hand, as a file for `--embeddings`.

    pip install -e ".[vectors]"
    python -m experiments.word_vectors --output vectors.txt
    python -m experiments.word_vectors --output vectors.txt --text mine.txt.gz --epochs 10

Without --text it reads the training texts found below $DYNSKIP_DATA_DIR: wikitext2, imdb, conll2003, ud_ewt.
Texts of dev and test are not read. One thread does the work, so that the same texts give the same vectors.
"""

import argparse
import itertools
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.imdb import find_imdb
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tagged_corpus import find_entity_corpus, find_part_of_speech_corpus
from dynskip_jax.data.tagger_vocabulary import normal_form
from dynskip_jax.data.text import read_lines
from dynskip_jax.data.vocabulary import UNK
from dynskip_jax.errors import UserError
from experiments import cli

Sentences = Sequence[Sequence[str]]

# WikiText writes the marks inside of words and numbers apart: `state @-@ of`, `1 @,@ 000`.
_JOINED = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}
_MOST_WORDS = 10_000  # of a sentence that gensim reads
_KNOWN = ("wikitext2", "imdb", "conll2003", "ud_ewt")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Raises:
        UserError: gensim is missing, no text is found, or the file exists.
    """
    parser = argparse.ArgumentParser(
        prog="python -m experiments.word_vectors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--output", required=True, type=Path, help="The file to write.")
    parser.add_argument(
        "--text", nargs="+", type=Path, help="Text files, plain or .gz, instead of the known ones."
    )
    parser.add_argument("--width", type=_positive, default=100, help="Numbers of a vector. [100]")
    parser.add_argument("--epochs", type=_positive, default=5, help="Passes over the texts. [5]")
    parser.add_argument(
        "--window", type=_positive, default=5, help="Words to each side that are predicted. [5]"
    )
    parser.add_argument("--min-count", type=_positive, default=3, help="Rarer words get no vector. [3]")
    parser.add_argument(
        "--digits", choices=("keep", "nine", "zero"), default="nine", help="As of taggers. [nine]"
    )
    parser.add_argument(
        "--lowercase", action=argparse.BooleanOptionalAction, default=True, help="As of taggers. [True]"
    )
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    flags = parser.parse_args(arguments)
    if flags.output.exists():
        raise UserError(f"{flags.output} exists: remove it, or name another file with --output")
    if not flags.output.parent.is_dir():
        raise UserError(f"the folder {flags.output.parent} does not exist: make it, or name another")
    texts = {str(path): _plain(path) for path in flags.text} if flags.text else known_texts()
    if not texts:
        raise UserError(f"no text found: name files with --text, or a folder with ${DATA_VARIABLE}")
    sentences = [
        [normal_form(word, lowercase=flags.lowercase, digits=flags.digits) for word in words]
        for words in itertools.chain(*texts.values())
    ]
    for name, own in texts.items():
        print(f"{name}: {sum(map(len, own)):,} words")
    words, vectors = skip_gram(
        sentences,
        width=flags.width,
        epochs=flags.epochs,
        window=flags.window,
        min_count=flags.min_count,
        seed=flags.seed,
    )
    write_word_vectors(flags.output, words, vectors)
    print(f"{len(words):,} vectors of {flags.width} numbers in {flags.output}")


def known_texts(environ: Mapping[str, str] = os.environ) -> dict[str, Sentences]:
    """Training texts of the corpora found below `$DYNSKIP_DATA_DIR`, by the corpus's name."""
    found: dict[str, Sentences] = {}
    for name in _KNOWN:
        folder = named_folder(name, environ)
        if folder is not None:
            found[name] = _READERS[name](folder)
    return found


def skip_gram(
    sentences: Iterable[Sequence[str]], *, width: int, epochs: int, window: int, min_count: int, seed: int
) -> tuple[list[str], np.ndarray]:
    """Trains a skip-gram model with ten negative samples (Mikolov et al. 2013).

    Args:
        sentences: words in their normal form; no pair of words reaches over a sentence's end.
        width: numbers of a vector.
        epochs: passes over the sentences.
        window: the most words to each side that are predicted.
        min_count: rarer words get no vector.
        seed: of the initial vectors and of sampling.

    Returns:
        The words, the most frequent first, and their vectors, (words, width), float32.

    Raises:
        UserError: gensim is not installed, or no word is frequent enough.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise UserError(f"word vectors need gensim ({error}): pip install 'dynskip_jax[vectors]'") from None
    # gensim reads no more than so many words of a sentence, and drops the rest without a word.
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
    columns = (
        *Progress.get_default_columns()[:3],
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("skip-gram", total=epochs * len(pieces))

        class Pieces:
            """Begins anew in every epoch, as gensim asks for it, and moves the bar."""

            def __iter__(self) -> Iterator[Sequence[str]]:
                for words in pieces:
                    progress.advance(task)
                    yield words

        model.train(Pieces(), total_examples=len(pieces), epochs=epochs)
    order = sorted(model.wv.index_to_key, key=lambda word: (-model.wv.get_vecattr(word, "count"), word))
    return order, np.stack([model.wv[word] for word in order])


def write_word_vectors(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    """Writes vectors as word2vec's text files have them: whole, or not at all."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            print(len(words), vectors.shape[1], file=file)
            for word, vector in zip(words, vectors, strict=True):
                print(word, *(f"{number:.5g}" for number in vector), file=file)
        except BaseException:
            temporary.unlink()
            raise
    temporary.replace(path)


def _plain(path: Path) -> Sentences:
    return [treebank_words(line) for line in read_lines(path, blank_lines=False)]


def _wikitext(folder: Path) -> Sentences:
    files = sorted(folder.glob("wiki.train.tokens*"))
    if not files:
        raise UserError(f"{folder} has no wiki.train.tokens or wiki.train.tokens.gz")
    sentences = []
    for line in read_lines(files[0], blank_lines=False):
        for mark, joined in _JOINED.items():
            line = line.replace(mark, joined)
        sentences.append([word for word in line.split() if word != UNK])
    return sentences


def _reviews(folder: Path) -> Sentences:
    reviews, _ = find_imdb(folder)
    return [treebank_words(review.text.replace("<br />", " ")) for review in reviews["train"]]


def _entities(folder: Path) -> Sentences:
    return [sentence.words for sentence in find_entity_corpus("conll2003", folder).splits["train"]]


def _treebank(folder: Path) -> Sentences:
    return [sentence.words for sentence in find_part_of_speech_corpus("ud", folder).splits["train"]]


_READERS = dict(zip(_KNOWN, (_wikitext, _reviews, _entities, _treebank), strict=True))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


if __name__ == "__main__":
    logging.getLogger("gensim").setLevel(logging.ERROR)
    cli.run_main(main)
