"""The command `predict` of taggers: tag text or column files with a finished tagger."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import ModelFlags
from dynskip_jax.experiments.commands.predict import input_lines
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import ON, path_setting, setting

if TYPE_CHECKING:
    from dynskip_jax.data.batches import Batch
    from dynskip_jax.data.tagged_files import LinesToTag, TaggedSentence
    from dynskip_jax.data.vocabularies import TaggerVocabulary, TokenIds
    from dynskip_jax.experiments.experiment import Experiment
    from dynskip_jax.experiments.loaded import LoadedModel
    from dynskip_jax.experiments.tagging import TaggerData

batching = LazyModule("dynskip_jax.data.batches")
column_files = LazyModule("dynskip_jax.data.tagged_files")
sentence_data = LazyModule("dynskip_jax.data.sentences")
compilation_cache = LazyModule("dynskip_jax.devices.compilation_cache")
consoles = LazyModule("dynskip_jax.experiments.console")
entity_score = LazyModule("dynskip_jax.tasks.entity_score")
loading = LazyModule("dynskip_jax.experiments.loaded")
tag_schemes = LazyModule("dynskip_jax.data.tag_schemes")
tagged_examples = LazyModule("dynskip_jax.data.tagged")
tagger_vocabulary = LazyModule("dynskip_jax.data.vocabularies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagFlags(ModelFlags):
    """Flags of `predict`."""

    input: str | None = path_setting(None, "File to read; by default standard input.")
    format: Literal["text", "columns", "conllu"] = setting(
        "text",
        "Format of the input: text (a sentence per line), columns (a word per line, an empty line after each "
        "sentence) or conllu.",
    )
    raw_text: bool = setting(
        True, "Tokenize the text; otherwise split it at whitespace.", needs={"format": "text"}
    )
    word_column: int | None = setting(
        None, "Column of the words, counted from 0; by default as in training.", needs={"format": "columns"}
    )
    output: Literal["columns", "json"] = setting(
        "columns", "Write a word and its tag per line, or a JSON object per sentence."
    )
    scheme: Literal["BIO2", "IOB1", "BIOES", "trained"] = setting(
        "BIO2", "Scheme of the tags that are written; trained: that of the training files."
    )
    at_once: int | None = setting(
        None,
        "Read this many sentences before writing any; by default 256, and 1 at a terminal.",
        at_least=1,
    )
    max_words: int = setting(
        400, "Read longer sentences in pieces of this many words, to save memory.", at_least=1
    )
    score: bool = setting(
        False, "Compare with the tags in the input (columns or conllu), and print scores to stderr."
    )
    tag_column: int | None = setting(
        None,
        "Column of the true tags; by default as in training.",
        needs=({"score": ON}, {"format": "columns"}),
    )


_AT_ONCE, _ROWS = 256, 32  # number of sentences to collect, and maximum number of rows in a batch


def predict(experiment: type[Experiment], flags: TagFlags) -> None:
    """Write the tags of each sentence, in groups of `--at-once` sentences.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.

    Raises:
        UserError: The input cannot be read, or `--score` finds no valid tags in it.
    """
    compilation_cache.keep_compiled_programs()
    trained = loading.load_run(flags.run_dir, flags.model, flags.of_seed, experiment.name)
    interactive = flags.input is None and sys.stdin.isatty()
    at_once = flags.at_once or (1 if interactive else _AT_ONCE)
    rows = min(_ROWS, 1 << (at_once - 1).bit_length())
    has_entities = trained.experiment.scheme is not None
    scheme = _scheme(trained, flags)
    data = trained.settings.data
    column = column_files.CONLLU_COLUMNS["misc" if has_entities else getattr(data, "tag", "upos")]
    sentences = read_input(flags, data, column)
    gold, predicted = [], []

    def best(batch: Batch) -> np.ndarray:
        return np.asarray(trained.learner.predict(trained.params, batch, trained.policy))

    for number, group in enumerate(_groups(sentences, at_once)):
        if flags.score:
            gold += [_true_tags(sentence, flags, column) for sentence in group]
            group = [s._replace(columns=[beside[:-1] for beside in s.columns]) for s in group]
        found = tag(best, trained.vocabulary, group, flags.max_words, rows)
        if has_entities and number == 0:  # written late, so that an error in the input is the only message
            _tell(f"tags of entities are written in {scheme}")
        for sentence, tags in zip(group, found, strict=True):
            tags = trained.experiment.written(tags, scheme)
            predicted += [tags] if flags.score else []
            if flags.output == "json":
                consoles.write(as_json(sentence, tags, has_entities=has_entities))
            else:
                consoles.write(as_columns(sentence, tags, flags, column))
        sys.stdout.flush()
    if flags.score:
        _check_gold(gold, has_entities=has_entities)
        score = entity_score.entity_score if has_entities else entity_score.tag_score
        _tell(score(gold, predicted).text("type" if has_entities else "tag"))


def _scheme(trained: LoadedModel, flags: TagFlags) -> str:
    """Return the scheme of the written tags.

    Raises:
        UserError: The scheme of the training files is requested, but the run does not store it.
    """
    if flags.scheme != "trained" or trained.experiment.scheme is None:
        return flags.scheme
    scheme = trained.vocabulary.scheme or trained.settings.data.scheme
    if scheme is None:
        raise UserError(
            f"{flags.run_dir} was trained by an older version, which did not store the scheme of its files: "
            "give --scheme BIO2, IOB1 or BIOES"
        )
    return scheme


def _true_tags(sentence: LinesToTag, flags: TagFlags, column: int) -> list[str]:
    """Return the true tags of a sentence, which are the last of its words' `columns`."""
    tags = [beside[-1] for beside in sentence.columns]
    if flags.format == "conllu" and column == column_files.CONLLU_COLUMNS["misc"]:
        return [column_files.entity_of_misc(misc) for misc in tags]
    return tags


def _check_gold(gold: Sequence[Sequence[str]], *, has_entities: bool) -> None:
    """Raise a `UserError` if the true tags that --score reads are no valid tags."""
    if any(tag == column_files.UNSPECIFIED for tags in gold for tag in tags):
        raise UserError("--score: some words of the input have no tag (_): leave out --score")
    found = tag_schemes.detect_scheme(gold)
    if has_entities and found.scheme is None and any(tag != "O" for tags in gold for tag in tags):
        raise UserError(f"--score: expected tags of entities, found {found.says}: name their --tag-column")


def _tell(text: str) -> None:
    """Write a line to stderr, if there is one."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def read_input(flags: TagFlags, data: TaggerData, column: int) -> Iterator[LinesToTag]:
    """Return an iterator over the sentences of the input.

    With --score, the last of a word's `columns` is its true tag.

    Args:
        flags: Flags of the command.
        data: Settings of the data that the tagger was trained on.
        column: Column of the tags in CoNLL-U.

    Raises:
        UserError: The input cannot be read, lacks columns that the tagger reads, or has no tags for --score.
    """
    lines = input_lines(flags.input)
    if flags.format == "text":
        if flags.score:
            raise UserError("--score reads the true tags from the input: add --format columns, or conllu")
        return read_text(lines, flags)
    word = data.word_column if flags.word_column is None else flags.word_column
    beside = tuple(getattr(data, "columns", None) or ())
    if beside and flags.format == "conllu":
        raise UserError(
            f"this tagger also reads columns of its training files (--columns {','.join(map(str, beside))}), "
            "which CoNLL-U does not have: give --format columns"
        )
    if flags.score:
        own = data.tag_column if flags.tag_column is None else flags.tag_column
        beside += (column if flags.format == "conllu" else own,)
    where = flags.input or "standard input"
    return column_files.lines_to_tag(lines, flags.format, word=word, beside=beside, where=where)


def tag(
    best: Callable[[Batch], Sequence[Sequence[int]]],
    vocabulary: TaggerVocabulary,
    sentences: Sequence[LinesToTag | TaggedSentence],
    max_words: int = 400,
    rows: int = _ROWS,
) -> list[list[str]]:
    """Return a tag for each word of each sentence, in the scheme of the model.

    Args:
        best: Function from a batch of padded sentences to the tag ids of each row. It may return ids for the
            padding, too.
        vocabulary: Vocabulary of words and tags.
        sentences: Sentences with their words and other columns. A sentence may have no words.
        max_words: Maximum length of a row. Longer sentences are tagged in pieces of this many words.
        rows: Number of rows in a batch. Each number requires its own compiled program.
    """
    pieces = [
        (number, slice(start, start + max_words))
        for number, sentence in enumerate(sentences)
        for start in range(0, len(sentence.words), max_words)
    ]
    # Pieces of similar length share a batch. Few padded lengths and one number of rows need few programs.
    words = [sentences[number].words[part] for number, part in pieces]
    order = sorted(range(len(pieces)), key=lambda i: len(words[i]))
    found: dict[int, list[str]] = {}
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        ids = [vocabulary.encode(words[i], sentences[pieces[i][0]].columns[pieces[i][1]]) for i in chosen]
        for i, row in zip(chosen, best(_batch(ids, rows)), strict=False):
            found[i] = [vocabulary.tags[k] for k in row[: len(words[i])]]
    tags: list[list[str]] = [[] for _ in sentences]
    for i, (number, _) in enumerate(pieces):
        tags[number] += found[i]
    return tags


def read_text(lines: Iterable[str], flags: TagFlags) -> Iterator[LinesToTag]:
    """Yield the sentence of each nonempty line, tokenized (--raw-text) or split at whitespace."""
    for line in lines:
        words = sentence_data.treebank_words(line, lowercase=False) if flags.raw_text else line.split()
        if words:
            yield column_files.LinesToTag([], words, [], [])


def as_columns(block: LinesToTag, tags: Sequence[str], flags: TagFlags, column: int) -> str:
    """Return the input lines of a block with the tags of its words added, or, for text, word-tag lines.

    Args:
        block: Lines or words of the input.
        tags: Tag of each word.
        flags: Flags of the command.
        column: Column of the tags in CoNLL-U.
    """
    if block.lines:
        lines = column_files.tagged_lines(block, tags, flags.format, column=column)
        return "".join(f"{line}\n" for line in lines)
    return "".join(f"{word} {tag}\n" for word, tag in zip(block.words, tags, strict=True)) + "\n"


def as_json(sentence: LinesToTag, tags: Sequence[str], *, has_entities: bool) -> str:
    """Return a line with a JSON object: the words, the tags and, with `has_entities`, the entities.

    The result is empty if the sentence has no words.
    """
    words = sentence.words
    if not words:
        return ""
    record = {"words": words, "tags": list(tags)}
    if has_entities:
        record["entities"] = [
            {"type": kind, "start": start, "end": end, "text": " ".join(words[start:end])}
            for kind, start, end in tag_schemes.entities(tags)
        ]
    return json.dumps(record, ensure_ascii=False) + "\n"


def _groups(sentences: Iterable[LinesToTag], size: int) -> Iterator[list[LinesToTag]]:
    """Yield groups of `size` sentences with words, together with the wordless blocks between them."""
    group: list[LinesToTag] = []
    count = 0
    for sentence in sentences:
        group.append(sentence)
        count += bool(sentence.words)
        if count == size:
            yield group
            group, count = [], 0
    if group:
        yield group


def _batch(ids: Sequence[TokenIds], rows: int) -> Batch:
    """Return a batch of `rows` rows with the sentences, padded; unused rows have length 1."""
    lengths = [len(one.words) for one in ids] + [1] * (rows - len(ids))
    time = tagged_examples.padded_length(max(lengths))

    def padded(leaves: Sequence[np.ndarray]) -> np.ndarray:
        whole = np.zeros((rows, time, *leaves[0].shape[1:]), np.int32)
        for row, leaf in zip(whole, leaves, strict=False):
            row[: len(leaf)] = leaf
        return whole

    inputs = tagger_vocabulary.TokenIds(*(padded(leaves) for leaves in zip(*ids, strict=True)))
    return batching.Batch(inputs, None, seq_lengths=np.array(lengths, np.int32))


TAG = Subcommand(
    "Tag text, or the words of columns, and write columns or JSON lines.",
    TagFlags,
    predict,
)
