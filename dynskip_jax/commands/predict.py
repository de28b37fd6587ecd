"""The command `predict`: write the prediction of a finished model for each line or sentence of a text."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dynskip_jax.commands import check_unused
from dynskip_jax.config import Bounds
from dynskip_jax.console import say, write
from dynskip_jax.data import tag_schemes, tagged_files
from dynskip_jax.data.batches import Batch
from dynskip_jax.data.files import stream_lines
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tagged import padded_length
from dynskip_jax.data.tagged_files import CONLLU_COLUMNS, LinesToTag
from dynskip_jax.data.vocabularies import TaggerVocabulary, TokenIds
from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.tagger_task import written
from dynskip_jax.tasks.entity_score import entity_score, tag_score
from dynskip_jax.trained import Trained, load_run

Count = Annotated[int, Bounds(at_least=1, at_most=1_000_000)]
Column = Annotated[int, Bounds(at_most=1_000_000)]
_AT_ONCE, _ROWS = 256, 32  # number of sentences to collect, and maximum number of rows in a batch
_OF_TAGGERS = ("format", "word_column", "output", "scheme", "at_once", "max_words", "score", "tag_column")


def predict(
    run_dir: Path,
    model: str | None = None,
    input: Path | None = None,
    raw_text: bool = True,
    format: Literal["text", "columns", "conllu"] = "text",
    word_column: Column = 0,
    output: Literal["columns", "json"] = "columns",
    scheme: Literal["BIO2", "IOB1", "BIOES", "trained"] = "BIO2",
    at_once: Count | None = None,
    max_words: Count = 400,
    score: bool = False,
    tag_column: Column | None = None,
    of_seed: int | None = None,
    code: str | None = None,
) -> None:
    """Read one text per line, and write a prediction for each; taggers write a tag for each word.

    Args:
        run_dir: A finished run folder, of one model or of several compared.
        model: Name of the model, if the run compares several; by default the last.
        input: File to read; by default standard input.
        raw_text: Taggers: tokenize the text; otherwise split it at whitespace.
        format: Taggers: text (a sentence per line), columns (a word per line, an empty line after each
            sentence) or conllu.
        word_column: Taggers: column of the words, counted from 0.
        output: Taggers: write a word and its tag per line, or a JSON object per sentence.
        scheme: Taggers: scheme of the tags that are written; trained: that of the training files.
        at_once: Taggers: read this many sentences before writing any; by default 256, and 1 at a terminal.
        max_words: Taggers: read longer sentences in pieces of this many words, to save memory.
        score: Taggers: compare with the tags in the input (columns or conllu), and print scores to stderr.
        tag_column: Taggers: column of the true tags; by default as in training.
        of_seed: Seed of the model, if several were trained together; by default the first.
        code: Import this module first: the one with your own skip or transition.
    """
    given = dict(locals())
    keep_compiled_programs()
    trained = load_run(run_dir, model, of_seed, "predict")
    if isinstance(trained.vocabulary, TaggerVocabulary):
        _tag(trained, given)
        return
    check_unused(predict, given, (*_OF_TAGGERS, "raw_text"), "is for taggers: leave it out")
    count = 0
    for line in input_lines(input):
        prediction = trained.read(line).prediction if trained.split(line) else ""
        if prediction and not count:
            _say_whose(trained)
        count += bool(prediction)
        write(f"{prediction}\n")
        sys.stdout.flush()
    _check_some(count, input)


def _say_whose(trained: Trained, more: str = "") -> None:
    """Name the model on stderr, after the first text, so that an error in the input is the only message."""
    say(f"predictions by {trained.name}, seed {trained.seed}{more}", sys.stderr)


def input_lines(path: Path | None) -> Iterator[str]:
    """Yield the lines of a file or of standard input as they arrive, cut where training cuts them."""
    where = "standard input" if path is None else f"--input {path}"
    try:
        with contextlib.ExitStack() as opened:
            source: Any = getattr(sys.stdin, "buffer", sys.stdin)
            if path is not None:
                source = opened.enter_context(open(path, "rb"))
            if source is None:
                raise UserError("standard input is closed: give --input FILE")
            yield from source if isinstance(source, io.TextIOBase) else stream_lines(source, where)
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: for example, the path contains a NUL
        raise UserError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _check_some(count: int, path: Path | None) -> None:
    if not count:
        raise UserError(f"{path or 'standard input'} has no text: write one text per line")


# --- Taggers ---


def _tag(trained: Trained, flags: dict[str, Any]) -> None:
    """Write the tags of each sentence, in groups of `at_once` sentences."""
    for format, names in {"text": ("raw_text",), "columns": ("word_column", "tag_column")}.items():
        if flags["format"] != format:
            check_unused(predict, flags, names, f"is for --format {format}: leave it out")
    if not flags["score"]:
        check_unused(predict, flags, ["tag_column"], "is for --score: leave it out")
    at_once = flags["at_once"] or (1 if flags["input"] is None and sys.stdin.isatty() else _AT_ONCE)
    rows = min(_ROWS, 1 << (at_once - 1).bit_length())
    own = trained.learner.task.scheme
    has_entities = own is not None
    scheme = flags["scheme"]
    if scheme == "trained" and has_entities:
        scheme = trained.vocabulary.scheme or trained.settings.data.scheme
    data = trained.settings.data
    column = CONLLU_COLUMNS["misc" if has_entities else getattr(data, "tag", "upos")]
    gold, predicted, count = [], [], 0

    def best(batch: Batch) -> np.ndarray:
        return np.asarray(trained.learner.predict(trained.params, batch, trained.policy))

    for number, group in enumerate(_groups(read_input(flags, data, column), at_once)):
        count += sum(bool(sentence.words) for sentence in group)
        if flags["score"]:
            gold += [_true_tags(sentence, flags, column) for sentence in group]
            group = [s._replace(columns=[beside[:-1] for beside in s.columns]) for s in group]
        found = tag(best, trained.vocabulary, group, flags["max_words"], rows)
        if number == 0:
            _say_whose(trained, f"; tags of entities are written in {scheme}" if has_entities else "")
        for sentence, tags in zip(group, found, strict=True):
            tags = written(tags, own, scheme)
            predicted += [tags] if flags["score"] else []
            is_json = flags["output"] == "json"
            write(
                as_json(sentence, tags, has_entities)
                if is_json
                else as_columns(sentence, tags, flags, column)
            )
        sys.stdout.flush()
    _check_some(count, flags["input"])
    if flags["score"]:
        _check_gold(gold, has_entities)
        scored = (entity_score if has_entities else tag_score)(gold, predicted)
        say(scored.text("type" if has_entities else "tag"), sys.stderr)


def _true_tags(sentence: LinesToTag, flags: dict[str, Any], column: int) -> list[str]:
    """Return the true tags of a sentence, which are the last of its words' `columns`."""
    tags = [beside[-1] for beside in sentence.columns]
    if flags["format"] == "conllu" and column == CONLLU_COLUMNS["misc"]:
        return [tagged_files.entity_of_misc(misc) for misc in tags]
    return tags


def _check_gold(gold: Sequence[Sequence[str]], has_entities: bool) -> None:
    """Raise a `UserError` if the true tags that --score reads are no valid tags."""
    if any(tag == tagged_files.UNSPECIFIED for tags in gold for tag in tags):
        raise UserError("--score: some words of the input have no tag (_): leave out --score")
    found = tag_schemes.detect_scheme(gold)
    if has_entities and found.scheme is None and any(tag != "O" for tags in gold for tag in tags):
        raise UserError(f"--score: expected tags of entities, found {found.says}: name their --tag-column")


def read_input(flags: dict[str, Any], data: Any, column: int) -> Iterator[LinesToTag]:
    """Return an iterator over the sentences; with --score, the last of a word's `columns` is its true tag.

    Args:
        flags: Flags of the command.
        data: Settings of the data that the tagger was trained on.
        column: Column of the tags in CoNLL-U.
    """
    lines = input_lines(flags["input"])
    if flags["format"] == "text":
        if flags["score"]:
            raise UserError("--score reads the true tags from the input: add --format columns, or conllu")
        texts = (treebank_words(x, lowercase=False) if flags["raw_text"] else x.split() for x in lines)
        return (LinesToTag([], words, [], []) for words in texts if words)
    beside = tuple(getattr(data, "columns", None) or ())
    if beside and flags["format"] == "conllu":
        raise UserError(
            f"this tagger also reads columns of its training files (--columns {','.join(map(str, beside))}), "
            "which CoNLL-U does not have: give --format columns"
        )
    if flags["score"]:
        own = data.tag_column if flags["tag_column"] is None else flags["tag_column"]
        beside += (column if flags["format"] == "conllu" else own,)
    where = str(flags["input"] or "standard input")
    return tagged_files.lines_to_tag(
        lines, flags["format"], word=flags["word_column"], beside=beside, where=where
    )


def tag(
    best: Callable[[Batch], Sequence[Sequence[int]]],
    vocabulary: TaggerVocabulary,
    sentences: Sequence[Any],
    max_words: int = 400,
    rows: int = _ROWS,
) -> list[list[str]]:
    """Return a tag for each word of each sentence, in the scheme of the model.

    Args:
        best: Function from a batch of padded sentences to the tag ids of each row, and of its padding.
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


def _batch(ids: Sequence[TokenIds], rows: int) -> Batch:
    """Return a batch of `rows` rows with the sentences, padded; unused rows have length 1."""
    lengths = [len(one.words) for one in ids] + [1] * (rows - len(ids))
    time = padded_length(max(lengths))

    def padded(leaves: Sequence[np.ndarray]) -> np.ndarray:
        whole = np.zeros((rows, time, *leaves[0].shape[1:]), np.int32)
        for row, leaf in zip(whole, leaves, strict=False):
            row[: len(leaf)] = leaf
        return whole

    inputs = TokenIds(*(padded(leaves) for leaves in zip(*ids, strict=True)))
    return Batch(inputs, None, seq_lengths=np.array(lengths, np.int32))


def as_columns(block: LinesToTag, tags: Sequence[str], flags: dict[str, Any], column: int) -> str:
    """Return the input lines of a block with the tags of its words added, or, for text, word-tag lines."""
    if block.lines:
        lines = tagged_files.tagged_lines(block, tags, flags["format"], column=column)
        return "".join(f"{line}\n" for line in lines)
    return "".join(f"{word} {tag}\n" for word, tag in zip(block.words, tags, strict=True)) + "\n"


def as_json(sentence: LinesToTag, tags: Sequence[str], has_entities: bool) -> str:
    """Return a line with a JSON object: the words, the tags and the entities; empty without words."""
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
