"""Train word vectors of one's own, as a file for `--embeddings`."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from dynskip_jax.config.flags import Count, Size
from dynskip_jax.data.files import DATA_VARIABLE, named_folder
from dynskip_jax.data.language import text_lines
from dynskip_jax.data.sentence_corpora import find_imdb
from dynskip_jax.data.sentences import LINE_BREAK, treebank_words
from dynskip_jax.data.tagged import find_tagged_corpus
from dynskip_jax.data.vocabularies import UNK, normal_form
from dynskip_jax.errors import UserError, needs
from dynskip_jax.storage.files import check_new, write_atomically

Sentences = Iterable[Sequence[str]]

# WikiText separates the marks inside words and numbers: `state @-@ of`, `1 @,@ 000`.
_JOINED = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}
_MOST_WORDS = 10_000  # of a sentence; gensim silently drops the rest
# Skip-gram with negative samples (Mikolov et al. 2013); words that are rarer than `min_count` get
# no vector.
_SKIP_GRAM = dict(sg=1, window=5, negative=10, min_count=3, seed=1, workers=1)


def word_vectors(
    output: Path, text: tuple[Path, ...] | None = None, width: Size = 100, epochs: Count = 5
) -> None:
    """Train word vectors by a skip-gram model of texts at hand, as a file for `--embeddings`.

    Without --text it reads the training texts found below $DYNSKIP_DATA_DIR: wikitext2, imdb,
    conll2003, ud_ewt. No file of dev or test is read; the dev of imdb is part of its train. As in
    taggers, words are lowercased and digits become 9. One thread does the work, so that the same
    texts give the same vectors. It needs the extra `vectors`.

    Args:
        output: File to write.
        text: Text files, plain or .gz, separated by commas, in place of the known texts.
        width: Size of a vector.
        epochs: Passes over the texts.
    """
    check_new(output)
    with needs("vectors"):
        from gensim.models import Word2Vec
    logging.getLogger("gensim").setLevel(logging.ERROR)
    if text:
        texts = {str(path): _plain(path) for path in text}
    else:
        texts = known_texts()
    pieces = []
    for name, sentences in texts.items():
        before = sum(map(len, pieces))
        for words in sentences:
            words = [normal_form(word, lowercase=True, digits="nine") for word in words]
            pieces += [
                words[start : start + _MOST_WORDS] for start in range(0, len(words), _MOST_WORDS)
            ]
        print(f"{name}: {sum(map(len, pieces)) - before:,} words")
    if not pieces:
        raise UserError(f"no text found: name files with --text, or a folder with ${DATA_VARIABLE}")
    model = Word2Vec(vector_size=width, **_SKIP_GRAM)
    model.build_vocab(pieces)
    vectors = model.wv
    # The error of gensim would not say what to do.
    if not vectors.index_to_key:
        raise UserError(f"no word occurs {_SKIP_GRAM['min_count']} times: give more text")
    model.train(pieces, total_examples=len(pieces), epochs=epochs)
    lines = [f"{len(vectors)} {width}"]  # a word2vec text file
    # Most frequent first, as GloVe has them, and ties in order of the alphabet.
    for word in sorted(
        vectors.index_to_key, key=lambda word: (-vectors.get_vecattr(word, "count"), word)
    ):
        lines.append(" ".join([word, *(f"{number:.5g}" for number in vectors[word])]))
    write_atomically(output, "\n".join(lines) + "\n")
    print(f"{len(vectors):,} vectors of {width} numbers in {output}")


def known_texts() -> dict[str, Sentences]:
    """Return the training texts of the corpora below `$DYNSKIP_DATA_DIR`, by name."""
    folders = {name: named_folder(name) for name in _READERS}
    return {name: _READERS[name](folder) for name, folder in folders.items() if folder is not None}


def _plain(path: Path) -> Sentences:
    return [treebank_words(line) for line in text_lines(path)]


def _wikitext(folder: Path) -> Sentences:
    files = sorted(folder.glob("wiki.train.tokens*"))
    if not files:
        raise UserError(f"{folder} has no wiki.train.tokens or wiki.train.tokens.gz")
    for line in text_lines(files[0]):
        for mark, joined in _JOINED.items():
            line = line.replace(mark, joined)
        yield [word for word in line.split() if word != UNK]


def _reviews(folder: Path) -> Sentences:
    reviews, _ = find_imdb(folder)
    return [treebank_words(LINE_BREAK.sub(" ", review.text)) for review in reviews["train"]]


def _tagged(corpus: str, folder: Path) -> Sentences:
    return [sentence.words for sentence in find_tagged_corpus(corpus, folder).splits["train"]]


_READERS = dict(wikitext2=_wikitext, imdb=_reviews)
_READERS |= dict(conll2003=partial(_tagged, "conll2003"), ud_ewt=partial(_tagged, "ud"))
