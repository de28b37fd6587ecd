"""Train the word vectors of the results tables with gensim: `python docs/word_vectors.py FILE`.

It reads the training texts below $DYNSKIP_DATA_DIR (wikitext2, imdb, conll2003, ud_ewt), and
writes a word2vec text file for `--embeddings`. As in taggers, words are lowercased and digits
become 9. One thread does the work, so that the same texts give the same vectors.
"""

import sys
from pathlib import Path

from gensim.models import Word2Vec

from dynskip_jax.data.files import named_folder
from dynskip_jax.data.language import text_lines
from dynskip_jax.data.sentence_corpora import find_imdb
from dynskip_jax.data.sentences import LINE_BREAK, treebank_words
from dynskip_jax.data.tagged import find_tagged_corpus
from dynskip_jax.data.vocabularies import UNK, normal_form

WIDTH = 100
MOST_WORDS = 10_000  # of a sentence; gensim silently drops the rest
# WikiText separates the marks inside words and numbers: `state @-@ of`, `1 @,@ 000`.
JOINED = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}


def wikitext(folder):
    """Yield the words of each line."""
    (path,) = folder.glob("wiki.train.tokens*")
    for line in text_lines(path):
        for mark, joined in JOINED.items():
            line = line.replace(mark, joined)
        yield [word for word in line.split() if word != UNK]


def reviews(folder):
    """Yield the words of each review of train."""
    for review in find_imdb(folder)[0]["train"]:
        yield treebank_words(LINE_BREAK.sub(" ", review.text))


def tagged(dataset):
    """Return a function that returns the sentences of a tagged corpus."""
    return lambda folder: [
        sentence.words for sentence in find_tagged_corpus(dataset, folder).splits["train"]
    ]


READERS = {
    "wikitext2": wikitext,
    "imdb": reviews,
    "conll2003": tagged("conll2003"),
    "ud_ewt": tagged("ud"),
}


def main(output):
    """Train vectors of all texts that are there, and write them."""
    pieces = []
    for name, sentences_in in READERS.items():
        folder = named_folder(name)
        if folder is None:
            continue
        for words in sentences_in(folder):
            words = [normal_form(word, lowercase=True, digits="nine") for word in words]
            starts = range(0, len(words), MOST_WORDS)
            pieces += [words[start : start + MOST_WORDS] for start in starts]
        print(f"{name}: {sum(map(len, pieces)):,} words so far")
    # Skip-gram with negative samples (Mikolov et al. 2013); rarer words get no vector.
    how = dict(sg=1, window=5, negative=10, min_count=3, seed=1, workers=1)
    model = Word2Vec(vector_size=WIDTH, **how)
    model.build_vocab(pieces)
    model.train(pieces, total_examples=len(pieces), epochs=5)
    vectors = model.wv
    lines = [f"{len(vectors)} {WIDTH}"]
    # Most frequent first, as GloVe has them, and ties in order of the alphabet.
    counts = {word: vectors.get_vecattr(word, "count") for word in vectors.index_to_key}
    for word in sorted(counts, key=lambda word: (-counts[word], word)):
        lines.append(" ".join([word, *(f"{number:.5g}" for number in vectors[word])]))
    Path(output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
