"""Format text from users' files for messages: printable, short, and with its file and line."""

import os
import unicodedata
from collections.abc import Mapping

from dynskip_jax.errors import UserError

_MAX_MESSAGE = 299
_MAX_WHERE = 130
_MAX_QUOTED = 40
# Control and format characters, surrogates, and separators of lines and paragraphs. Format
# characters are invisible, or change the order in which a terminal displays the text after them.
_CONTROL_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Format characters that are parts of words: joiners, and signs such as those of Arabic numbers and
# verses.
_OF_WORDS = frozenset("\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")


def printable(text: object) -> str:
    r"""Return `text` with control and invisible characters as escapes, in any script."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(symbol: str) -> str:
    if unicodedata.category(symbol) not in _CONTROL_CATEGORIES or symbol in _OF_WORDS:
        return symbol
    return symbol.encode("unicode_escape").decode("ascii")


def shortened(text: str, limit: int) -> str:
    """Return `text`; if it has more than `limit` characters, an ellipsis replaces its middle."""
    if len(text) <= limit:
        return text
    # The end of a path or a message tells more than its middle.
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def shown(text: object, limit: int = _MAX_QUOTED) -> str:
    """Return `text` as printable text of at most `limit` characters."""
    # Shortened twice: without the first cut, a text of megabytes would be escaped as a whole.
    return shortened(printable(shortened(str(text), limit)), limit)


def shares(of_splits: Mapping[str, float]) -> str:
    """Return fractions of splits in percent."""
    return ", ".join(f"{100 * share:.3g} % of {split}" for split, share in of_splits.items())


def quoted(value: object) -> str:
    """Return the `repr` of a value from a file in at most 60 characters."""
    if isinstance(value, str):
        value = shortened(value, _MAX_QUOTED)
    return shown(repr(value), 60)


def normalized(text: str) -> str:
    """Return a name without spaces around it and in NFC, so that equal names are equal."""
    return unicodedata.normalize("NFC", text.strip())


def checked_label(text: str, kind: str, where: str | os.PathLike[str], number: int) -> str:
    """Return a label, normalized; refuse an empty one and one that terminals cannot show."""
    label = normalized(text)
    if not label:
        raise bad_line(where, number, f"the {kind} is empty")
    if not label.isprintable():
        problem = f"the {kind} {quoted(label)} has characters that do not print: replace them"
        raise bad_line(where, number, problem)
    return label


def bad_file(where: str | os.PathLike[str], problem: str) -> UserError:
    """Return the error for a file or folder: its name, a space and the problem, cut at 300."""
    return _bad(f"{shown(os.fspath(where), _MAX_WHERE)} ", problem)


def bad_line(where: str | os.PathLike[str], number: int, problem: str) -> UserError:
    """Return the error for a line, counted from 1: the file, the line and the problem."""
    return _bad(f"{shown(os.fspath(where), _MAX_WHERE)}, line {number}: ", problem)


def _bad(where: str, problem: str) -> UserError:
    return UserError(where + shown(problem, _MAX_MESSAGE - len(where)))
