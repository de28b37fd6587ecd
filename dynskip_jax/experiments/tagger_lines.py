"""Tag sentences in the formats of taggers, and score the tags against those of the input."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dynskip_jax.data import tag_schemes, tagged_files
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tagged_files import CONLLU_COLUMNS, LinesToTag
from dynskip_jax.errors import UserError
from dynskip_jax.runs.load import Trained
from dynskip_jax.tasks.label_score import score_labels
from dynskip_jax.terminal.console import say


def tag_lines(
    trained: Trained, lines: Iterable[str], format: str, score: bool
) -> Iterator[tuple[str, bool]]:
    """Yield each sentence with its tags, and whether it has no words; at last print the scores."""
    vocabulary = trained.vocabulary
    scheme = trained.learner.task.scheme
    data = trained.settings.data
    column = data.tag_column
    if format == "conllu":
        column = CONLLU_COLUMNS[getattr(data, "tag", "upos") if scheme is None else "misc"]
    gold = []
    predicted = []
    for sentence in _sentences(lines, format, data, column, score):
        words = sentence.words
        columns = sentence.columns
        if score:
            # The true tags must not reach the model, which reads the other columns.
            gold.append([values[-1] for values in columns])
            columns = [values[:-1] for values in columns]
        # A block may have only comments and blank lines, which are written as they are.
        tags = []
        if words:
            ids = vocabulary.encode(words, columns)
            _, best = trained.learner.read(trained.params, ids, len(words), trained.policy)
            tags = written([vocabulary.tags[k] for k in np.asarray(best)], scheme)
        if score:
            predicted.append(tags)
        if format in ("columns", "conllu"):
            tagged = tagged_files.tagged_lines(sentence, tags, format, column=column)
        else:
            tagged = [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
        yield "".join(f"{line}\n" for line in tagged), not words
    if score:
        say("\n".join(_scores(gold, predicted, scheme, format)), sys.stderr)


def _scores(gold: list[Any], predicted: list[Any], scheme: str | None, format: str) -> list[str]:
    """Return the lines of a table of scores; `scheme` is that of the model's tags of entities."""
    if format == "conllu" and scheme is not None:
        gold = [[tagged_files.entity_of_misc(misc) for misc in tags] for tags in gold]
    tags = {tag for of_sentence in gold for tag in of_sentence}
    if tagged_files.UNSPECIFIED in tags:
        raise UserError("--score: some words of the input have no tag (_): leave out --score")
    # Scores of a wrong column would look like those of a bad model.
    detected, says = tag_schemes.detect_scheme(gold)
    if scheme is not None and detected is None and tags - {"O"}:
        raise UserError(f"--score: expected tags of entities in the tags' column, found {says}")
    scores = score_labels(gold, predicted, has_entities=scheme is not None)
    return scores.lines("tag" if scheme is None else "type")


def _sentences(
    lines: Iterable[str], format: str, data: Any, column: Any, score: bool
) -> Iterator[LinesToTag]:
    """Return the sentences; with `score`, the last of a word's `columns` is its true tag."""
    if format in ("text", "words"):
        if score:
            raise UserError(
                "--score reads the true tags from the input: add --format columns, or conllu"
            )
        split = str.split if format == "words" else partial(treebank_words, lowercase=False)
        texts = map(split, lines)
        return (LinesToTag([], words, [], []) for words in texts if words)
    beside = tuple(getattr(data, "columns", None) or ())
    if beside and format == "conllu":
        raise UserError(
            "this tagger also reads columns of its training files "
            f"(--columns {','.join(map(str, beside))}), which CoNLL-U does not have: "
            "give --format columns"
        )
    if score:
        beside = (*beside, column)
    lines = (line.rstrip("\r\n") for line in lines)
    return tagged_files.lines_to_tag(lines, format, beside=beside)


def written(tags: Sequence[str], scheme: str | None) -> list[str]:
    """Convert tags to what users see: entity tags (of a scheme) in BIO2, others as they are."""
    return list(tags) if scheme is None else tag_schemes.convert_tags(tags, "BIO2")
