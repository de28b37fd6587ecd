"""Find and read tagged corpora, make their missing splits, and turn them into examples of ids."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from dynskip_jax.data.batches import Batch, Examples, pad_sequences
from dynskip_jax.data.files import (
    SPLITS,
    PathLike,
    data_folder,
    find_splits,
    named_folder,
    place,
    zip_names,
)
from dynskip_jax.data.messages import bad_file, bad_line, printable, shown
from dynskip_jax.data.tag_schemes import Scheme, convert_tags, detect_scheme, first_problem, tag_of
from dynskip_jax.data.tagged_files import (
    TaggedSentence,
    read_columns,
    read_conllu,
    read_parses,
    read_word_tag,
)
from dynskip_jax.data.vocabularies import TaggerVocabulary, TokenIds
from dynskip_jax.errors import UserError

Sentences = Sequence[TaggedSentence]
EntityDataset = Literal["conll2003", "conll2000", "columns"]
PartOfSpeechDataset = Literal["ud", "wsj", "conllu", "word_tag", "columns"]

COLUMN_ENDINGS = ("txt", "conll", "tsv", "iob", "iob2", "bio", "bio2", "bioes", "stagged", "")
_CONLL2003 = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
_CONLL2000 = {"train": "train.txt", "test": "test.txt"}
_DEV_SENTENCES = 1000  # size of the dev split of CoNLL-2000; at most a tenth of train
# If the distinct values of a tag column exceed this fraction of the number of words, the column contains
# words. The check needs at least `_MANY_WORDS` words.
_MOST_TAGS, _MANY_WORDS = 0.35, 200
_SHORTEST = 8  # the shortest length to which sentences are padded


@dataclasses.dataclass(frozen=True)
class TaggedCorpus:
    """Sentences with a tag for each word, in three splits.

    Attributes:
        name: Name of the corpus in results.
        source: Phrase for messages that describes where the corpus was found.
        splits: Sentences of `train`, `dev` and `test`.
        files: Name of each split's file, for error messages.
        scheme: Scheme of the tags; None if the tags do not mark entities.
        note: Additional line for messages, or an empty string.
        file_scheme: Scheme of the tags in the files; None if the tags do not mark entities.
    """

    name: str
    source: str
    splits: Mapping[str, Sentences]
    files: Mapping[str, str]
    scheme: Scheme | None = None
    note: str = ""
    file_scheme: Scheme | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of sentences of each split."""
        return {split: len(self.splits[split]) for split in SPLITS}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the scheme and of the words, tags and other columns of all splits."""
        digest = hashlib.sha256(str(self.scheme).encode())
        for split in SPLITS:
            for sentence in self.splits[split]:
                columns = [value for values in sentence.columns for value in values]
                line = [split, *sentence.words, *sentence.tags, *columns, "\n"]
                digest.update("\t".join(line).encode())
        return digest.hexdigest()

    @property
    def train_tags(self) -> tuple[str, ...]:
        """Tags that occur in train, in sorted order."""
        return tuple(sorted({tag for sentence in self.splits["train"] for tag in sentence.tags}))

    def check_tags(self, known: Iterable[str], remedy: str) -> None:
        """Raise a `UserError`, which ends with `remedy`, if dev or test has a tag that is not known."""
        known = set(known)
        for split in ("dev", "test"):
            for sentence in self.splits[split]:
                for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                    if tag not in known:
                        problem = f"the tag {shown(tag)} is not in train{remedy}"
                        raise bad_line(self.files[split], line, problem)


def entity_tags(corpus: TaggedCorpus) -> tuple[str, ...]:
    """Return `O` and, for each type of entity in train, its tags with all letters of BIOES."""
    kinds = sorted({tag.partition("-")[2] for tag in corpus.train_tags if tag != "O"})
    return ("O", *(tag_of(letter, kind) for kind in kinds for letter in "BIES"))


def find_entity_corpus(
    dataset: EntityDataset,
    data: PathLike | None = None,
    *,
    scheme: Scheme | None = None,
    beside: Sequence[int] = (),
    word: int = 0,
    tag: int = -1,
    seed: int = 0,
) -> TaggedCorpus:
    """Load a corpus of named entities or chunks, and convert its tags to BIOES.

    Args:
        dataset: `conll2003` (entities), `conll2000` (chunks; a tenth of train, at most 1,000, becomes
            dev) or `columns`, any folder with files for train, dev and test that have one word on
            each line, and its tag in another column.
        data: Folder of the corpus; for `conll2000` also NLTK's archive. None searches `$DYNSKIP_DATA_DIR`.
        scheme: Scheme of the tags in the files. None means the corpus's own; for `columns` it is detected
            from the tags of train.
        beside: Other columns to read, counted from 0, such as that of parts of speech.
        word: Column of words for `columns`, counted from 0, or from the end if negative.
        tag: Column of tags for `columns`, counted likewise.
        seed: Seed of the random choice of dev for `conll2000`.
    """
    if dataset == "columns":
        corpus = _own(
            data, dataset, COLUMN_ENDINGS, functools.partial(read_columns, word=word, tag=tag, beside=beside)
        )
        if scheme is None:
            scheme, says = _detected(corpus, word, tag)
            corpus = dataclasses.replace(corpus, note=f"tags of train: {says}")
    elif dataset == "conll2003":
        folder = data_folder(data, "conll2003", "CoNLL-2003", [*_CONLL2003.values()])
        places = {split: _existing(folder, name) for split, name in _CONLL2003.items()}
        read = functools.partial(read_columns, beside=beside)
        corpus = _corpus("conll2003", f"the folder {folder}", places, read)
        scheme = scheme or "IOB1"
    else:
        corpus, scheme = _conll2000(data, beside, seed), scheme or "BIO2"
    splits = {
        split: _in_bioes(sentences, scheme, corpus.files[split]) for split, sentences in corpus.splits.items()
    }
    corpus = dataclasses.replace(corpus, splits=splits, scheme="BIOES", file_scheme=scheme)
    corpus.check_tags(entity_tags(corpus), ", nor is another of its type")
    return corpus


def find_part_of_speech_corpus(
    dataset: PartOfSpeechDataset,
    data: PathLike | None = None,
    *,
    tag: Literal["upos", "xpos"] = "upos",
    word_column: int = 0,
    tag_column: int = -1,
    seed: int = 0,
) -> TaggedCorpus:
    """Load a corpus with one tag per word, such as parts of speech or CCG categories.

    Args:
        dataset: `ud` is a treebank of Universal Dependencies, by default the English EWT. `wsj` is NLTK's
            sample of the Penn Treebank: a random tenth of it becomes dev, and another tenth test. The others
            are any folder with files for train, dev and test: `conllu`, `word_tag` (word/tag pairs, one
            sentence per line) or `columns` (one word per line, with its tag in another column).
        data: Folder of the corpus; for `wsj` also NLTK's archive. None searches `$DYNSKIP_DATA_DIR` for `ud`
            and `wsj`; the others require a folder.
        tag: Universal tags, or those of the treebank, for `ud` and `conllu`.
        word_column: Column of words for `columns`, counted from 0, or from the end if negative.
        tag_column: Column of tags for `columns`, counted likewise.
        seed: Seed of the random choice of dev and test for `wsj`.
    """
    if dataset == "ud":
        names = [f"*-ud-{split}.conllu" for split in SPLITS]
        folder = data_folder(data, "ud_ewt", "the treebank", names)
        places = dict(zip(SPLITS, (_existing(folder, name) for name in names), strict=True))
        name = f"{printable(folder.resolve().name)}, {tag.upper()}"
        return _corpus(name, f"the folder {folder}", places, functools.partial(read_conllu, tag=tag))
    if dataset == "wsj":
        return _wsj(data, seed)
    if dataset == "conllu":
        return _own(data, dataset, ("conllu",), functools.partial(read_conllu, tag=tag))
    if dataset == "word_tag":
        return _own(data, dataset, ("txt", "pos", "tagged"), read_word_tag)
    read = functools.partial(read_columns, word=word_column, tag=tag_column)
    corpus = _own(data, dataset, COLUMN_ENDINGS, read)
    words = sum(len(sentence.words) for sentence in corpus.splits["train"])
    if words >= _MANY_WORDS and len(corpus.train_tags) > _MOST_TAGS * words:
        count = f"{len(corpus.train_tags):,} different tags for {words:,} words"
        raise bad_file(
            corpus.files["train"], f"has {count} in column {tag_column}: is it the column of tags?"
        )
    return corpus


def _cut(sentences: Sentences, sizes: Sequence[int], seed: int) -> list[list[TaggedSentence]]:
    """Split sentences at random into parts of the given sizes and the rest, each in the order of the file."""
    order = np.random.default_rng(seed).permutation(len(sentences))
    bounds = np.cumsum([0, *sizes, len(sentences) - sum(sizes)])
    parts = [np.sort(order[start:stop]) for start, stop in itertools.pairwise(bounds)]
    return [[sentences[i] for i in part] for part in parts]


def _corpus(
    name: str,
    source: str,
    places: Mapping[str, tuple[Path, str | None]],
    read: Callable[..., list[TaggedSentence]],
) -> TaggedCorpus:
    """Read each split from a file, or from a member of a zip archive."""
    splits = {split: read(path, member=member) for split, (path, member) in places.items()}
    return TaggedCorpus(name, source, splits, {split: place(*where) for split, where in places.items()})


def _conll2000(data: PathLike | None, beside: Sequence[int], seed: int) -> TaggedCorpus:
    path = _archive(data, "conll2000", "conll2000.zip", "CoNLL-2000", [*_CONLL2000.values()])
    places = {
        split: _existing(path, name) if path.is_dir() else (path, f"conll2000/{name}")
        for split, name in _CONLL2000.items()
    }
    corpus = _corpus("conll2000", str(path), places, functools.partial(read_columns, beside=beside))
    size = min(_DEV_SENTENCES, len(corpus.splits["train"]) // 10)
    if not size:
        raise bad_file(corpus.files["train"], "has too few sentences to take a tenth of them for dev")
    dev, train = _cut(corpus.splits["train"], [size], seed)
    return dataclasses.replace(
        corpus,
        splits={"train": train, "dev": dev, "test": corpus.splits["test"]},
        files={**corpus.files, "dev": corpus.files["train"]},
        note=f"dev: {size:,} sentences of train, drawn with the seed {seed}",
    )


def _wsj(data: PathLike | None, seed: int) -> TaggedCorpus:
    path = _archive(data, "wsj", "treebank.zip", "the sample of the WSJ", ["the .mrg files"])
    if path.is_dir():
        places = [(file, None) for file in sorted(path.glob("*.mrg"))]
    else:
        places = [(path, name) for name in sorted(zip_names(path)) if name.endswith(".mrg")]
    sentences = [sentence for file, member in places for sentence in read_parses(file, member=member)]
    size = len(sentences) // 10
    if not size:
        problem = f"has {len(sentences)} sentences in .mrg files, too few to take a tenth of them for dev "
        raise bad_file(path, f"{problem}and another for test: name NLTK's treebank.zip, or a folder")
    dev, test, train = _cut(sentences, [size, size], seed)
    note = f"dev and test: {size:,} sentences each, drawn with the seed {seed}; no published split"
    splits = {"train": train, "dev": dev, "test": test}
    return TaggedCorpus("wsj_sample", str(path), splits, dict.fromkeys(SPLITS, str(path)), note=note)


def _own(
    data: PathLike | None, dataset: str, endings: Sequence[str], read: Callable[..., list[TaggedSentence]]
) -> TaggedCorpus:
    """Read a user's folder with one file for each split."""
    if data is None:
        raise UserError(
            f"--dataset {dataset} reads a folder of your own, with files for train, dev and test: name it "
            "with --data DIR"
        )
    folder = Path(data).expanduser()
    places = {split: (path, None) for split, path in find_splits(folder, endings).items()}
    return _corpus(printable(folder.resolve().name), f"the folder {folder}", places, read)


def _in_bioes(sentences: Sentences, scheme: Scheme, where: str) -> list[TaggedSentence]:
    """Return the sentences with tags of BIOES; tags that break the rules of `scheme` are an error."""
    converted = []
    for sentence in sentences:
        problem = first_problem(sentence.tags, scheme)
        if problem is not None:
            raise bad_line(where, sentence.lines[problem[0]], problem[1])
        converted.append(sentence._replace(tags=convert_tags(sentence.tags, scheme, "BIOES")))
    return converted


def _detected(corpus: TaggedCorpus, word: int, tag: int) -> tuple[Scheme, str]:
    """Return the scheme of train's tags, and a line that describes it."""
    path, train = corpus.files["train"], corpus.splits["train"]
    words = detect_scheme([sentence.words for sentence in train])
    if words.scheme is not None:
        problem = f"has tags of {words.scheme} as words, in column {word}: choose another column of words"
        raise bad_file(path, problem)
    found = detect_scheme([sentence.tags for sentence in train])
    if found.scheme is None:
        problem = f"has no tags of entities in column {tag} ({found.says}): name another --tag-column"
        raise bad_file(path, problem)
    return found.scheme, found.says


def _existing(folder: Path, pattern: str) -> tuple[Path, None]:
    """Return the only file in `folder` whose name matches the pattern, perhaps with .gz."""
    found = [path for ending in ("", ".gz") for path in sorted(folder.glob(pattern + ending))]
    if len(found) != 1:
        names = ", ".join(shown(path.name) for path in found[:3]) or "none"
        raise bad_file(folder, f"needs one file named {pattern} (or .gz), and has {names}: use --data DIR")
    return found[0], None


def _archive(data: PathLike | None, name: str, archive: str, title: str, files: Sequence[str]) -> Path:
    """Return the zip archive of a corpus, also from the folder nltk, or the folder with its files."""
    folder = named_folder(name) if data is None else Path(data).expanduser()
    for path in (folder, named_folder("nltk") if data is None else None):
        if path is not None and (path / archive).is_file():
            return path / archive
    if folder is not None and folder.is_file():
        return folder
    return data_folder(data, name, title, [f"NLTK's {archive}, or", *files])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedExamples(Examples):
    """Sentences as ids; the characters of words are looked up for each batch, to save memory.

    Attributes:
        spellings: Character ids of each distinct word, (forms, length). `inputs.characters` contains the row
            of each word in this table; `batch` replaces the row numbers by the characters.
    """

    spellings: Int[np.ndarray, "forms length"]

    def batch(
        self, index: Int[np.ndarray, "*lead rows"], mask: Bool[np.ndarray, "*lead rows"] | None, bucket: int
    ) -> Batch:
        """Return a batch as `Examples.batch` does; `inputs.characters` is (*lead, rows, time, length)."""
        batch = super().batch(index, mask, bucket)
        characters = self.spellings[batch.inputs.characters]
        return batch._replace(inputs=batch.inputs._replace(characters=characters))


def tagged_examples(
    sentences: Sequence[Sequence[str]],
    tags: Sequence[Sequence[int]],
    vocabulary: TaggerVocabulary,
    *,
    columns: Sequence[Sequence[tuple[str, ...]]] | None = None,
    least: int = 1,
    most: int | None = None,
) -> TaggedExamples:
    """Return the examples of a split."""
    forms = {word: i for i, word in enumerate(dict.fromkeys(word for words in sentences for word in words))}
    known = vocabulary.encode_forms(list(forms))
    padded, lengths = pad_sequences(
        [np.array([forms[word] for word in words], np.int32) for words in sentences]
    )
    inside = np.arange(padded.shape[1]) < lengths[:, None]
    beside = np.zeros((*padded.shape, len(vocabulary.columns)), np.int32)
    for row, values, length in zip(beside, columns or [()] * len(beside), lengths, strict=True):
        row[:length] = vocabulary.encode_columns(values, int(length))
    ids = (known.words[padded], padded, known.capitals[padded])
    inputs = TokenIds(*(np.where(inside, of, 0) for of in ids), beside)
    targets, _ = pad_sequences([np.array(row, np.int32) for row in tags])
    buckets = sentence_buckets(lengths, least, most)
    return TaggedExamples(inputs, targets, lengths, buckets=buckets, spellings=known.characters)


def padded_length(length: int) -> int:
    """Return the smallest of 8, 16, 24, 40, 64, … (8 times the Fibonacci numbers) that is >= `length`."""
    size, following = _SHORTEST, 2 * _SHORTEST
    while size < length:
        size, following = following, size + following
    return size


def sentence_buckets(
    lengths: Int[np.ndarray, " sentences"], least: int, most: int | None = None
) -> tuple[int, ...]:
    """Return the padded lengths (buckets) of a split.

    Buckets with fewer than `least` sentences are merged into the next longer one; `least` is doubled until
    there are at most `most` buckets.
    """
    sizes, counts = np.unique([padded_length(int(length)) for length in lengths], return_counts=True)
    kept, waiting = [], 0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        waiting += count
        if waiting >= least or size == sizes[-1]:
            kept.append(size)
            waiting = 0
    if most is not None and len(kept) > max(1, most):
        return sentence_buckets(lengths, 2 * least, most)
    return tuple(kept)
