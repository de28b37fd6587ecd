"""Tags that spell out entities or chunks, one per word: IOB1, BIO2 and BIOES; what may follow what.

A tag is `O`, or a letter and a type such as `B-PER`. With X for the type:

* IOB1 (CoNLL-2003): `I-X` on each word of an entity, but `B-X` on the first one where an entity of the same
  type ends just before it. A `B-X` elsewhere is read all the same (CoNLL-2003's training file has two), so
  that any order of its tags can be read; it is written as `I-X`.
* BIO2 (CoNLL-2000): `B-X` on the first word of each entity, `I-X` on the others.
* BIOES: `S-X` on the only word of an entity; else `B-X` on the first, `E-X` on the last, `I-X` between them.

Where there is one kind of entity, tags may be letters alone: `B`, `I`, `O`. Its type is then empty.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool

from dynskip_jax.data.messages import quoted, shown
from dynskip_jax.errors import UserError

Scheme = Literal["IOB1", "BIO2", "BIOES"]
SCHEMES: tuple[str, ...] = get_args(Scheme)

_LETTERS = {"IOB1": "BI", "BIO2": "BI", "BIOES": "BIES"}
_Tag = tuple[str, str]
_OUTSIDE: _Tag = ("O", "")
_BARE_TAGS = frozenset("BIESO")
_TAG = re.compile(r"O|[BIES](?:-.+)?", re.DOTALL)

# Letters of neighbours between which conlleval always lets an entity begin, or end.
_BEGINS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
_ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}


class Entity(NamedTuple):
    """An entity or chunk of a sentence.

    Attributes:
        kind: its type; empty where tags have none.
        start: its first word, counted from 0.
        end: the word after its last one.
    """

    kind: str
    start: int
    end: int


class AllowedTransitions(NamedTuple):
    """Which tags a scheme lets stand where; it unpacks into `functional.crf_constrain`.

    Attributes:
        transitions: whether tag i may be followed by tag j, at [i, j], (tags, tags).
        start: whether a tag may come first, (tags,).
        end: whether a tag may come last, (tags,).
    """

    transitions: Bool[np.ndarray, "tags tags"]
    start: Bool[np.ndarray, " tags"]
    end: Bool[np.ndarray, " tags"]


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence as `conlleval` reads them, whatever the tags are: nothing is an error.

    These are the rules of `startOfChunk` and `endOfChunk` in the script of the CoNLL-2000 to 2003 shared
    tasks (conlleval, version 2004-01-26, by Erik Tjong Kim Sang). What stands before the first hyphen is the
    letter, what follows it the type, both possibly empty. An entity begins at `B` after `B`, `I` or `O`, at
    `I` after `O`, and at any tag but `O` whose type is not that of the tag before; it ends before `B` and `O`
    where the tag before is `B` or `I`, and wherever the type changes. So IOB1 and BIO2 are both read as
    meant, an `I-X` after `O` or after another type begins an entity, and a letter that is none of these
    continues an entity of its type, or begins one.

    `S` and `E` are read as `B` and `I`, as if tags of BIOES had been turned into BIO2 before, which is the
    custom: the script has no `S`, and its `E`, of the schemes IOE1 and IOE2, does not end before a `B`, so
    that it takes two neighbours of one type, `B-X E-X B-X E-X`, for one entity. With `O-X`, or another letter
    without a type, as in `PER`, the script loses track of where entities end, and may call fewer of them
    correct than a comparison of these; it finds as many.
    """
    found, start = [], None
    last_letter, last_kind = _OUTSIDE
    for place, (letter, kind) in enumerate([*map(_as_bio, tags), _OUTSIDE]):
        pair, changed = (last_letter, letter), kind != last_kind
        begins = pair in _BEGINS or (letter not in ("O", ".") and changed)
        ends = pair in _ENDS or (last_letter not in ("O", ".") and changed)
        if start is not None and (ends or begins or place == len(tags)):
            found.append(Entity(tags[start].partition("-")[2], start, place))
            start = None
        if begins:
            start = place
        last_letter, last_kind = letter, kind
    return found


def read_entities(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """The entities of a sentence whose tags must follow the scheme.

    Raises:
        UserError: they do not; the message names the first word where, counted from 1.
    """
    problem = first_problem(tags, scheme)
    if problem is not None:
        raise UserError(f"word {problem[0] + 1}: {problem[1]}")
    return entities(tags)


def write_tags(found: Sequence[Entity], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence, one per word.

    Args:
        found: its entities, in any order.
        length: its number of words.
        scheme: in which to write them.

    Raises:
        ValueError: entities overlap, are empty or reach past the sentence.
    """
    tags, last = ["O"] * length, Entity("", 0, 0)
    for entity in sorted(found, key=lambda entity: entity.start):
        kind, start, end = entity
        if not last.end <= start < end <= length:
            raise ValueError(f"{entity} has no place among {length} words after {last}")
        tags[start:end] = [tag_of("I", kind)] * (end - start)
        if scheme == "BIO2" or (scheme == "IOB1" and last.start < last.end == start and last.kind == kind):
            tags[start] = tag_of("B", kind)
        elif scheme == "BIOES":
            tags[start], tags[end - 1] = tag_of("B", kind), tag_of("E", kind)
            if end - start == 1:
                tags[start] = tag_of("S", kind)
        last = entity
    return tags


def convert_tags(tags: Sequence[str], source: Scheme, target: Scheme, *, repair: bool = False) -> list[str]:
    """The same entities in another scheme, or in the same one.

    Converting there and back gives valid tags back; in IOB1 those without a `B-X` that is not needed.

    Args:
        tags: those of one sentence.
        source: their scheme.
        target: that of the answer.
        repair: read tags that break the rules as `conlleval` does (`entities`); else they are an error.
            Entities without a type are left out, unless the sentence has no others.

    Raises:
        UserError: the tags do not follow `source`, and are not to be repaired.
    """
    found = entities(tags) if repair else read_entities(tags, source)
    if repair and not all(tag in _BARE_TAGS for tag in tags):
        found = [entity for entity in found if entity.kind]
    return write_tags(found, len(tags), target)


def tag_of(letter: str, kind: str) -> str:
    """Return the tag of a letter and a type, or the letter where the type is empty."""
    return f"{letter}-{kind}" if kind else letter


class DetectedScheme(NamedTuple):
    """What the tags of sentences look like.

    Attributes:
        scheme: the scheme; None where tags spell out no entities.
        has_types: whether tags have a type, as in `B-PER`; False for `B`, `I` and `O`.
        says: a line for people: the scheme and what shows it, or why there is none.
    """

    scheme: Scheme | None
    has_types: bool
    says: str


def detect_scheme(sentences: Iterable[Sequence[str]]) -> DetectedScheme:
    """Return the scheme of the tags of sentences.

    BIOES has tags with E or S. Without them it is BIO2 where entities begin with B, and IOB1 where most begin
    with I. Tags that are neither `O` nor one of these letters, alone or with a type, are of no scheme.
    """
    sentences = list(sentences)
    tags = sorted(set(itertools.chain(*sentences)))
    kinds = {tag.partition("-")[2] for tag in tags if tag != "O"}
    other = next((tag for tag in tags if not _TAG.fullmatch(tag)), None)
    if other is not None:
        return DetectedScheme(None, False, f"no scheme: {quoted(other)} is no tag of {', '.join(SCHEMES)}")
    if not kinds:
        return DetectedScheme(None, False, "no scheme: there is no tag but O")
    if len(kinds) > 1 and "" in kinds:
        return DetectedScheme(None, False, "no scheme: some tags have a type and some have none")
    if any(tag[0] in "ES" for tag in tags):
        scheme, shows = "BIOES", "entities end with E or S"
    elif _begin_with_i(sentences):
        scheme, shows = "IOB1", "entities begin with I, and with B after one of the same type"
    else:
        scheme, shows = "BIO2", "entities begin with B"
    says = f"{scheme}: {shows}" + ("" if kinds != {""} else "; tags have no types")
    wrong = sum(first_problem(sentence, scheme) is not None for sentence in sentences)
    if wrong:
        says += f"; {wrong:,} of {len(sentences):,} sentences break its rules"
    return DetectedScheme(scheme, kinds != {""}, says)


def _begin_with_i(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether more entities begin with I than with a B that IOB1 does not need."""
    with_i = with_b = 0
    for sentence in sentences:
        last_kind = None
        for tag in sentence:
            letter, _, kind = tag.partition("-")
            kind = None if letter == "O" else kind
            with_i += letter == "I" and kind != last_kind
            with_b += letter == "B" and kind != last_kind
            last_kind = kind
    return with_i > with_b


def first_problem(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """Where a sentence's tags first break the scheme's rules.

    Returns:
        The word, counted from 0, and a phrase that says what is wrong; None for valid tags. That an entity of
        BIOES does not end is a problem of the word after it, or of the last word.
    """
    before = None
    for place, tag in enumerate(tags):
        now = _parsed(tag, scheme)
        if now is None:
            return place, _unknown(tag, scheme)
        if not _may_follow(before, now, scheme):
            previous = f"after {shown(tags[place - 1])}" if place else "at the start of a sentence"
            return place, f"the tag {shown(tag)} cannot stand {previous} in {scheme}"
        before = now
    if tags and not _may_follow(before, None, scheme):
        return len(tags) - 1, f"the tag {shown(tags[-1])} cannot end a sentence in {scheme}"
    return None


def allowed_transitions(tags: Sequence[str], scheme: Scheme) -> AllowedTransitions:
    """Which tags may follow each other, come first and come last.

    Args:
        tags: the tag of each index.
        scheme: whose rules.

    Raises:
        UserError: one of them is no tag of the scheme.
    """
    parsed = [_parsed(tag, scheme) for tag in tags]
    for tag, now in zip(tags, parsed, strict=True):
        if now is None:
            raise UserError(_unknown(tag, scheme))
    pairs = [[_may_follow(i, j, scheme) for j in parsed] for i in parsed]
    return AllowedTransitions(
        np.array(pairs, bool).reshape(len(tags), len(tags)),
        np.array([_may_follow(None, j, scheme) for j in parsed], bool),
        np.array([_may_follow(i, None, scheme) for i in parsed], bool),
    )


def _may_follow(before: _Tag | None, now: _Tag | None, scheme: Scheme) -> bool:
    """Whether the scheme allows two neighbours; None stands for the bounds of the sentence."""
    (last_letter, last_kind), (letter, kind) = before or _OUTSIDE, now or _OUTSIDE
    continues = last_letter in ("B", "I") and last_kind == kind
    if scheme == "BIOES":
        return continues if letter in ("I", "E") else last_letter not in ("B", "I")
    return scheme == "IOB1" or continues or letter != "I"


def _parsed(tag: str, scheme: Scheme) -> _Tag | None:
    """Letter and type of a tag of the scheme, None for another."""
    letter, _, kind = tag.partition("-")
    if tag == "O" or (letter in tuple(_LETTERS[scheme]) and (kind or tag == letter)):
        return letter, kind
    return None


def _unknown(tag: str, scheme: Scheme) -> str:
    letters = ", ".join(_LETTERS[scheme])
    return (
        f"{quoted(tag)} is no tag of {scheme}, which has O, and the letters {letters}, alone or with a type "
        "such as I-PER"
    )


def _as_bio(tag: str) -> _Tag:
    """Letter and type of any tag, those of BIOES as in BIO2."""
    letter, _, kind = tag.partition("-")
    return {"S": "B", "E": "I"}.get(letter, letter), kind
