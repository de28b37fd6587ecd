"""Check tag schemes on all short sequences, hand-made ones, and invalid tags."""

import itertools

import pytest

from dynskip_jax.data.tag_schemes import (
    SCHEMES,
    Entity,
    allowed_transitions,
    convert_tags,
    entities,
    first_problem,
    write_tags,
)

LETTERS = {"IOB1": "BI", "BIO2": "BI", "BIOES": "BIES"}

# The same entities in each scheme: PER 1-2, PER 3, LOC 4-6, LOC 7, and ORG 9.
SAME = {
    "IOB1": "I-PER I-PER B-PER I-LOC I-LOC I-LOC B-LOC O I-ORG",
    "BIO2": "B-PER I-PER B-PER B-LOC I-LOC I-LOC B-LOC O B-ORG",
    "BIOES": "B-PER E-PER S-PER B-LOC I-LOC E-LOC S-LOC O S-ORG",
}
BARE = {"IOB1": "I I B O I", "BIO2": "B I B O B", "BIOES": "B E S O S"}
FOUND = {
    "types": [("PER", 0, 2), ("PER", 2, 3), ("LOC", 3, 6), ("LOC", 6, 7), ("ORG", 8, 9)],
    "no types": [("", 0, 2), ("", 2, 3), ("", 4, 5)],
}


def vocabulary(scheme, kinds="XY"):
    return ["O", *(f"{letter}-{kind}" for letter in LETTERS[scheme] for kind in kinds)]


def labellings(length, kinds="XY"):
    """Yield all sets of entities that a sentence of `length` words can have."""
    if length == 0:
        yield []
    if length:
        yield from labellings(length - 1, kinds)
    for size in range(1, length + 1):
        for rest in labellings(length - size, kinds):
            for kind in kinds:
                yield [*rest, Entity(kind, length - size, length)]


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_by_hand(scheme, kind):
    same = SAME if kind == "types" else BARE
    found = FOUND[kind]
    tags = same[scheme].split()
    assert first_problem(tags, scheme) is None and entities(tags) == found
    assert write_tags([Entity(*row) for row in found], len(tags), scheme) == tags
    for other in SCHEMES:
        assert convert_tags(tags, other) == same[other].split()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("length", range(5))
def test_valid_tags_and_sets_of_entities_are_one_to_one(scheme, length):
    written = {tuple(write_tags(found, length, scheme)): found for found in labellings(length)}
    assert len(written) == [1, 3, 11, 41, 153][length] == len(list(labellings(length)))
    for tags, found in written.items():
        assert found == entities(tags)
    valid = {
        tags
        for tags in itertools.product(vocabulary(scheme), repeat=length)
        if first_problem(tags, scheme) is None
    }
    if scheme == "IOB1":  # this scheme allows a B that is not needed
        assert valid == set(itertools.product(vocabulary(scheme), repeat=length))
        assert {tuple(convert_tags(tags, "IOB1")) for tags in valid} == set(written)
    else:
        assert valid == set(written)
    for tags, target in itertools.product(written, SCHEMES):
        assert convert_tags(convert_tags(tags, target), scheme) == list(tags)


@pytest.mark.parametrize("has_types", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_allowed_transitions_make_the_valid_sequences(scheme, has_types):
    names = vocabulary(scheme) if has_types else ["O", *LETTERS[scheme]]
    allowed = allowed_transitions(names, scheme)
    for length in range(1, 5):
        for y in itertools.product(range(len(names)), repeat=length):
            steps = all(allowed.transitions[i, j] for i, j in itertools.pairwise(y))
            ok = allowed.start[y[0]] and allowed.end[y[-1]] and steps
            assert ok == (first_problem([names[k] for k in y], scheme) is None)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("B-X I-Y I-Y", [("X", 0, 1), ("Y", 1, 3)]),
        ("B-X I-X E-Y O", [("X", 0, 2), ("Y", 2, 3)]),
        # BIOES entities that are cut short or out of order are read as in BIO2.
        ("S-X E-X", [("X", 0, 2)]),
        ("B-X S-X", [("X", 0, 1), ("X", 1, 2)]),
        # Prefixes that no scheme has continue an entity or begin one. Even a following B does not
        # end it.
        ("O U-X B-X O", [("X", 1, 3)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
        ("PER O", []),
        ("B-X . I-X", [("X", 0, 1), ("X", 2, 3)]),
        ("", []),
    ],
)
def test_conllevals_reading(text, expected):
    assert entities(text.split()) == expected


@pytest.mark.parametrize(
    "scheme, text, place, phrase",
    [
        ("BIO2", "O I-X", 1, "I-X cannot stand after O in BIO2"),
        ("BIO2", "I-X", 0, "I-X cannot stand at the start of a sentence"),
        ("BIOES", "O B-X", 1, "B-X cannot end a sentence in BIOES"),
        ("IOB1", "I-", 0, "'I-' is no tag of IOB1"),
        ("BIO2", "O I-\x1b[31m", 1, "I-\\x1b[31m cannot stand after O"),
    ],
)
def test_the_first_problem_is_named(scheme, text, place, phrase):
    found, message = first_problem(text.split(), scheme)
    assert found == place and phrase in message and len(message) < 200 and message.isprintable()
