"""Convert between entities or chunks and their tags in the schemes IOB1, BIO2 and BIOES.

A tag is `O`, or a letter and a type such as `B-PER`. With X for the type:

* IOB1 (CoNLL-2003): Each word of an entity has `I-X`; the first one `B-X` if an entity of the same
  type ends just before it. A `B-X` elsewhere is also accepted (CoNLL-2003's training file has two).
* BIO2 (CoNLL-2000): The first word of each entity has `B-X`, the others have `I-X`.
* BIOES: As BIO2, but the last word of an entity has `E-X`, and its only word `S-X`.

If there is only one kind of entity, tags may be plain letters: `B`, `I`, `O`. The type is then
empty.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool

from dynskip_jax.terminal.messages import quoted, shown

Scheme = Literal["IOB1", "BIO2", "BIOES"]
SCHEMES: tuple[str, ...] = get_args(Scheme)

_LETTERS = {"IOB1": "BI", "BIO2": "BI", "BIOES": "BIES"}
_Tag = tuple[str, str]
_OUTSIDE: _Tag = ("O", "")
# Pairs of letters (previous tag, this tag) at which conlleval always begins, or ends, an entity.
_BEGINS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
_ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}


class Entity(NamedTuple):
    """An entity or chunk: its type, its first word, and the word after its last one."""

    kind: str
    start: int
    end: int


class AllowedTransitions(NamedTuple):
    """Whether tag j may follow tag i, at [i, j], and whether each may begin or end a sentence."""

    transitions: Bool[np.ndarray, "tags tags"]
    start: Bool[np.ndarray, " tags"]
    end: Bool[np.ndarray, " tags"]


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return a sentence's entities as `conlleval` (2004-01-26) finds them; no tag is an error.

    An entity begins at `B` after `B`, `I` or `O`, at `I` after `O`, and at any tag except `O` and
    `.` whose type, the text after the hyphen, differs from that of the previous tag. It ends before
    `B` and `O` if the previous tag is `B` or `I`, and wherever the type changes.

    `S` is read as `B` and `E` as `I`, as if BIOES tags had been converted to BIO2 first; the script
    itself does not define `S`. For `O-X`, or an unknown letter without a type such as `PER`, the
    script may count fewer of these entities as correct.
    """
    found = []
    start = None
    last_letter, last_kind = _OUTSIDE
    for at, (letter, kind) in enumerate([*map(_as_bio, tags), _OUTSIDE]):
        # The tag opens an entity, and it ends the one before it, by the letters or by the type.
        pair = (last_letter, letter)
        changed = kind != last_kind
        begins = pair in _BEGINS or (letter not in ("O", ".") and changed)
        ends = pair in _ENDS or (last_letter not in ("O", ".") and changed)
        if start is not None and (ends or begins or at == len(tags)):
            found.append(Entity(tags[start].partition("-")[2], start, at))
            start = None
        if begins:
            start = at
        last_letter = letter
        last_kind = kind
    return found


def write_tags(found: Sequence[Entity], length: int, scheme: Scheme) -> list[str]:
    """Return the tags of `length` words with these entities, in order and without overlap."""
    tags = ["O"] * length
    last = Entity("", 0, 0)
    for entity in found:
        kind, start, end = entity
        tags[start:end] = [tag_of("I", kind)] * (end - start)
        # IOB1 marks a beginning only where the entity before it touches it and is of its type.
        touches = last.start < last.end == start and last.kind == kind
        if scheme == "BIO2" or (scheme == "IOB1" and touches):
            tags[start] = tag_of("B", kind)
        elif scheme == "BIOES":
            tags[start] = tag_of("B", kind)
            tags[end - 1] = tag_of("E", kind)
            if end - start == 1:
                tags[start] = tag_of("S", kind)
        last = entity
    return tags


def convert_tags(tags: Sequence[str], target: Scheme) -> list[str]:
    """Return the tags in a scheme for the entities that `conlleval` finds in tags of any scheme.

    Entities without a type are left out, unless all tags are plain letters.
    """
    # Some corpora mark one kind of entity, by letters without a type.
    are_bare = {*tags} <= {*"BIESO"}
    kept = [entity for entity in entities(tags) if entity.kind or are_bare]
    return write_tags(kept, len(tags), target)


def tag_of(letter: str, kind: str) -> str:
    """Return the tag of a letter and a type, or only the letter if the type is empty."""
    return f"{letter}-{kind}" if kind else letter


def first_problem(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """Return the first word whose tag breaks the scheme's rules, and a phrase; else None."""
    before = None
    for at, tag in enumerate(tags):
        now = _parsed(tag, scheme)
        if now is None:
            letters = ", ".join(_LETTERS[scheme])
            more = f"which has O, and {letters}, alone or with a type as in I-PER"
            return at, f"{quoted(tag)} is no tag of {scheme}, {more}"
        if not _may_follow(before, now, scheme):
            where = f"after {shown(tags[at - 1])}" if at else "at the start of a sentence"
            return at, f"the tag {shown(tag)} cannot stand {where} in {scheme}"
        before = now
    if tags and not _may_follow(before, None, scheme):
        return len(tags) - 1, f"the tag {shown(tags[-1])} cannot end a sentence in {scheme}"
    return None


def allowed_transitions(tags: Sequence[str], scheme: Scheme) -> AllowedTransitions:
    """Return which of `tags` may follow each other, begin a sentence and end a sentence."""
    # Row and column 0 are the start and the end of a sentence.
    parsed = [None, *(_parsed(tag, scheme) for tag in tags)]
    allowed = np.array(
        [[_may_follow(before, now, scheme) for now in parsed] for before in parsed], bool
    )
    return AllowedTransitions(allowed[1:, 1:], allowed[0, 1:], allowed[1:, 0])


def _may_follow(before: _Tag | None, now: _Tag | None, scheme: Scheme) -> bool:
    """Return whether tag `now` may follow `before`; None is the sentence's start or end."""
    last_letter, last_kind = before or _OUTSIDE
    letter, kind = now or _OUTSIDE
    continues = last_letter in ("B", "I") and last_kind == kind
    if scheme == "BIOES":
        if letter in ("I", "E"):
            return continues
        return last_letter not in ("B", "I")
    return scheme == "IOB1" or continues or letter != "I"


def _parsed(tag: str, scheme: Scheme) -> _Tag | None:
    """Return the letter and type of a tag, or None if the tag does not belong to the scheme."""
    letter, _, kind = tag.partition("-")
    if tag == "O" or (letter in tuple(_LETTERS[scheme]) and (kind or tag == letter)):
        return letter, kind
    return None


def _as_bio(tag: str) -> _Tag:
    """Return any tag's letter and type, with BIO2's letters in place of those of BIOES."""
    letter, _, kind = tag.partition("-")
    return {"S": "B", "E": "I"}.get(letter, letter), kind
