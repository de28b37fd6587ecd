"""The command `predict`: write the prediction of a finished model for each line or sentence of a
text.
"""

import io
import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from dynskip_jax.commands.finished import FinishedRun
from dynskip_jax.console import say, write
from dynskip_jax.data import tag_schemes, tagged_files
from dynskip_jax.data.files import stream_lines
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tagged_files import CONLLU_COLUMNS, LinesToTag
from dynskip_jax.data.vocabularies import TaggerVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.tagger_task import written
from dynskip_jax.tasks.label_score import score_labels
from dynskip_jax.trained import Trained

Format = Literal["text", "words", "columns", "conllu"]


def predict(run: FinishedRun, format: Format = "text", score: bool = False) -> None:
    """Read one text per line, and write a prediction for each; taggers write a tag for each word.

    It reads standard input: `predict --run-dir DIR < FILE`. Tags of entities and chunks are written
    in BIO2.

    Args:
        format: Taggers: text (a sentence per line), words (the same, separated by spaces), columns
            (a word per line, an empty line after each sentence) or conllu.
        score: Taggers: compare with the tags in the input (columns or conllu), and print scores to
            stderr.
    """
    trained = run.last("predict")
    is_tagger = isinstance(trained.vocabulary, TaggerVocabulary)
    if not is_tagger and (format != "text" or score):
        raise UserError("--format and --score are for taggers: leave them out")
    count = 0
    for text, is_empty in _tagged(trained, format, score) if is_tagger else _read(trained):
        if not count and not is_empty:  # now, so that an error in the input is the only message
            say(f"predictions by {trained.name}, seed {trained.seed}", sys.stderr)
        count += not is_empty
        write(text)
        sys.stdout.flush()
    if not count:
        raise UserError("standard input has no text: write one text per line")


def input_lines() -> Iterator[str]:
    """Yield the lines of standard input as they arrive, cut where training cuts them."""
    source: Any = getattr(sys.stdin, "buffer", sys.stdin)
    yield from (
        source if isinstance(source, io.TextIOBase) else stream_lines(source, "standard input")
    )


def _read(trained: Trained) -> Iterator[tuple[str, bool]]:
    """Yield the prediction of each line, and whether the line has no text."""
    for line in input_lines():
        prediction = trained.read(line).prediction if trained.split(line) else ""
        yield f"{prediction}\n", not prediction


# --- Taggers ---


def _tagged(trained: Trained, format: Format, score: bool) -> Iterator[tuple[str, bool]]:
    """Yield each sentence with its tags, and whether it has no words; at the end, print the
    scores.
    """
    vocabulary, own, data = trained.vocabulary, trained.learner.task.scheme, trained.settings.data
    column = CONLLU_COLUMNS[getattr(data, "tag", "upos") if own is None else "misc"]
    gold, predicted = [], []
    for sentence in _sentences(
        format, data, column if format == "conllu" else data.tag_column, score
    ):
        words, columns = sentence.words, sentence.columns
        if score:
            gold.append([values[-1] for values in columns])
            columns = [values[:-1] for values in columns]
        tags = []
        if words:
            ids = vocabulary.encode(words, columns)
            _, best = trained.learner.read(trained.params, ids, len(words), trained.policy)
            tags = written([vocabulary.tags[k] for k in np.asarray(best)], own)
        predicted += [tags] if score else []
        lines = [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
        if format in ("columns", "conllu"):
            lines = tagged_files.tagged_lines(sentence, tags, format, column=column)
        yield "".join(f"{line}\n" for line in lines), not words
    if score:
        say("\n".join(_scores(gold, predicted, own, format)), sys.stderr)


def _scores(gold: list[Any], predicted: list[Any], own: str | None, format: Format) -> list[str]:
    """Return the lines of a table of scores; `own` is the scheme of the model's tags of
    entities.
    """
    if format == "conllu" and own is not None:
        gold = [[tagged_files.entity_of_misc(misc) for misc in tags] for tags in gold]
    tags = {tag for of_sentence in gold for tag in of_sentence}
    if tagged_files.UNSPECIFIED in tags:
        raise UserError("--score: some words of the input have no tag (_): leave out --score")
    scheme, says = tag_schemes.detect_scheme(gold)
    if own is not None and scheme is None and tags - {"O"}:
        raise UserError(f"--score: expected tags of entities in the tags' column, found {says}")
    return score_labels(gold, predicted, has_entities=own is not None).lines(
        "tag" if own is None else "type"
    )


def _sentences(format: Format, data: Any, tag_column: int, score: bool) -> Iterator[LinesToTag]:
    """Return an iterator over the sentences; with `score`, the last of a word's `columns` is its
    true tag.
    """
    lines, beside = input_lines(), tuple(getattr(data, "columns", None) or ())
    if format in ("text", "words"):
        if score:
            raise UserError(
                "--score reads the true tags from the input: add --format columns, or conllu"
            )
        texts = (
            x.split() if format == "words" else treebank_words(x, lowercase=False) for x in lines
        )
        return (LinesToTag([], words, [], []) for words in texts if words)
    if beside and format == "conllu":
        raise UserError(
            f"this tagger also reads columns of its training files (--columns {','.join(map(str, beside))}), "
            "which CoNLL-U does not have: give --format columns"
        )
    lines = (line.rstrip("\r\n") for line in lines)
    return tagged_files.lines_to_tag(lines, format, beside=beside + (tag_column,) * score)
