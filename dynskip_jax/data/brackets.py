"""Parse bracketed trees, such as `(S (NN yes))`, also where a bracket is itself a word."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dynskip_jax.data.messages import quoted
from dynskip_jax.errors import UserError

# Not \s: some words of treebanks contain a no-break space.
_PIECE = re.compile(r"([ \t\n\r\f\v]*)([()]|[^ \t\n\r\f\v()]+)")
_Problem = Callable[[int, str], UserError]


class Piece(NamedTuple):
    """One piece of a tree: the start of a bracket with children, the end of one, or a leaf.

    Attributes:
        kind: `open` for the start of a bracket with children, `close` for its end, `leaf` for a word.
        line: Number of the piece's line, counted from 1.
        label: Label of an `open` or `leaf` piece; empty for a bracket without a label.
        word: Word of a `leaf`.
    """

    kind: str
    line: int
    label: str = ""
    word: str = ""


def tree_pieces(lines: Iterable[tuple[int, str]], problem: _Problem) -> Iterator[Piece]:
    """Yield the pieces of trees, in order.

    A leaf is a label and a word in brackets. The word may be a bracket that is not escaped: `(-LRB- ()` and
    `(-RRB- ))` are leaves if whitespace follows the label.

    Args:
        lines: Pairs of a line's number and its text.
        problem: Function that returns an error for a line's number and a message.

    Raises:
        UserError: Brackets do not match; a bracket contains anything other than a label and one word, or an
            optional label and other brackets; or a word is outside all brackets.
    """
    pieces = (
        (number, found[2], bool(found[1]) or not found.start())
        for number, line in lines
        for found in _PIECE.finditer(line)
    )
    ahead: list[tuple[int, str, bool]] = []  # line, text, and whether whitespace or a line start precedes it
    opened: list[int] = []

    def look(count: int) -> str:
        """Return one letter for each of the next `count` tokens: `(`, `)`, or `w` for a word or label.

        The string is shorter at the end of the text.
        """
        ahead.extend(itertools.islice(pieces, count - len(ahead)))
        return "".join(text if text in "()" else "w" for _, text, _ in ahead[:count])

    while kinds := look(4):
        number, text, _ = ahead[0]
        if kinds[0] == ")":
            if not opened:
                raise problem(number, "a bracket closes that none has opened")
            opened.pop()
            yield Piece("close", number)
            del ahead[:1]
        elif kinds[0] == "w":
            inside = "a bracket holds a label and one word, or other brackets"
            outside = "every word stands in brackets"
            raise problem(number, f"unexpected {quoted(text)}: {inside if opened else outside}")
        elif kinds == "(ww)" or (kinds in ("(w()", "(w))") and ahead[2][2]):
            yield Piece("leaf", number, ahead[1][1], ahead[2][1])
            del ahead[:4]
        elif kinds[1:2] == ")":
            raise problem(number, "an empty bracket: a bracket holds a label and a word, or other brackets")
        elif kinds.startswith("(w)"):
            raise problem(number, f"({shown_label(ahead[1][1])}) has no words: it is a label or a word alone")
        else:
            has_label = kinds[1:2] == "w"
            opened.append(number)
            yield Piece("open", number, ahead[1][1] if has_label else "")
            del ahead[: 1 + has_label]
    if opened:
        raise problem(opened[0], "the bracket that opens here is not closed")


def shown_label(label: str) -> str:
    """Return a label for a message, without quotes."""
    return quoted(label)[1:-1]
