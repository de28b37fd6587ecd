"""Check settings as dataclasses: bounds (against comparisons), choices, nested settings, several values."""

import dataclasses
import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynskip_jax.errors import UserError
from dynskip_jax.settings import Bounds, check, field_types, listed, setting, without_none, words_of
from dynskip_jax.training.agent_settings import AgentSettings

NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([-0.5, 0.5, 1.5, math.nan, math.inf, -math.inf]))
ENDS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([-0.5, 0.5]))


@given(ENDS, ENDS, ENDS, ENDS, NUMBERS)
def test_bounds_are_comparisons(at_least, above, at_most, below, value):
    inside = math.isfinite(value)
    for end, compare in (
        (at_least, lambda end: value >= end),
        (above, lambda end: value > end),
        (at_most, lambda end: value <= end),
        (below, lambda end: value < end),
    ):
        inside = inside and (end is None or compare(end))
    assert Bounds(at_least, above, at_most, below).hold(value) == inside


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (dict(), "must be a finite number"),
        (dict(at_least=0), "must not be negative"),
        (dict(at_least=2), "must be at least 2"),
        (dict(above=0), "must be positive and finite"),
        (dict(above=1.5), "must be above 1.5"),
        (dict(at_most=3), "must be at most 3"),
        (dict(below=3), "must be below 3"),
        (dict(at_least=0, at_most=1), "must lie between 0 and 1"),
        (dict(at_least=0, below=1), "must lie in [0, 1)"),
        (dict(above=0, at_most=1), "must be above 0 and at most 1"),
    ],
    ids=str,
)
def test_what_a_value_outside_is_told(bounds, words):
    assert str(Bounds(**bounds)) == words


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, "A rate.", at_least=0, below=1)


@dataclasses.dataclass(frozen=True)
class Outer:
    word: Literal["a", "b", "c"] = setting("a", "A word.")
    maybe: Literal["x", "y"] | None = setting(None, "A word, or none.")
    steps: tuple[int, ...] = setting((1, 2), "Several.", at_least=1, sweep=True)
    number: float | None = setting(None, "A number.", above=0)
    flag: bool = setting(False, "Whether.")
    plain: float = 1.0
    inner: Inner = dataclasses.field(default_factory=Inner)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(word="d"), "word is 'd': choose a, b or c"),
        (dict(maybe="z"), "maybe is 'z': choose x or y"),
        (dict(steps=(3, 0)), "steps must be at least 1, got 0"),
        (dict(steps=0), "steps must be at least 1, got 0"),
        (dict(number=0.0), "number must be positive and finite, got 0.0"),
        (dict(number=math.inf), "number must be positive and finite, got inf"),
        (dict(plain=math.nan), "plain must be a finite number, got nan"),
        (dict(word=None), "word is None: choose a, b or c"),
        (dict(inner=Inner(1.0)), r"rate must lie in \[0, 1\), got 1.0"),
    ],
    ids=str,
)
def test_values_without_a_meaning_are_refused(values, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        check(unchecked(values))
    # The second argument turns a setting's name into the name in the message, such as a flag.
    with pytest.raises(UserError, match=f"^--{message}$"):
        check(unchecked(values), lambda name: f"--{name}")


def unchecked(values):
    """Return an `Outer` with values that may not have the declared types."""
    made = Outer()
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def test_values_with_a_meaning_pass():
    check(Outer())
    check(Outer(word="c", maybe="y", steps=(), number=1e-9, flag=True, plain=-5.0, inner=Inner(0.0)))


def test_types_of_fields():
    kinds = field_types(Outer)
    assert list(kinds) == [field.name for field in dataclasses.fields(Outer)]
    assert words_of(kinds["word"]) == ("a", "b", "c") and words_of(kinds["maybe"]) == ("x", "y")
    assert words_of(kinds["number"]) == words_of(kinds["steps"]) == ()
    assert without_none(kinds["number"]) is float and without_none(kinds["plain"]) is float
    assert without_none(int | str | None) == int | str | None
    metadata = {field.name: field.metadata for field in dataclasses.fields(Outer)}
    assert metadata["steps"]["sweep"] and not metadata["number"]["sweep"]
    assert metadata["word"]["help"] == "A word."


def test_lists_of_words():
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


def test_every_setting_of_agents_has_help_and_its_default_passes():
    check(AgentSettings())
    assert all(field.metadata["help"].endswith(".") for field in dataclasses.fields(AgentSettings))
    assert [f.name for f in dataclasses.fields(AgentSettings) if f.metadata["sweep"]] == [
        "entropy_coef",
        "temperature",
        "update_cost",
    ]


def test_the_objective_has_one_value_of_each_swept_setting():
    assert AgentSettings().objective() == AgentSettings()
    swept = AgentSettings(entropy_coef=(0.25, 0.5), update_cost=(1.0, 2.0), discount=0.5)
    assert swept.objective() == AgentSettings(entropy_coef=0.25, update_cost=1.0, discount=0.5)


def beyond(field):
    """Return values outside a setting's bounds, and values inside that are valid without other settings."""
    if words_of(field_types(AgentSettings)[field.name]):
        return ["nonsense"], [field.default]
    bounds = field.metadata["bounds"]
    outside = [math.nan, math.inf]
    for low, step in ((bounds.at_least, 1), (bounds.above, 0)):
        outside += [] if low is None else [low - step]
    for high, step in ((bounds.at_most, 1), (bounds.below, 0)):
        outside += [] if high is None else [high + step]
    inside = [field.default, *(v for v in (bounds.at_least, bounds.at_most) if v is not None)]
    return outside, inside


@pytest.mark.parametrize("field", dataclasses.fields(AgentSettings), ids=lambda field: field.name)
def test_settings_of_agents_have_bounds(field):
    outside, inside = beyond(field)
    for value in outside:
        with pytest.raises(UserError, match=f"^{field.name} "):
            check(AgentSettings(**{field.name: value}))
    for value in inside:
        check(AgentSettings(**{field.name: value}))
