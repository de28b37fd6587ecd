"""Which of many cases run by default: the others are slow tests."""

from collections.abc import Callable, Iterable

import pytest


def and_slow(cases: Iterable, by_default: Callable[..., bool]) -> list:
    """All cases, each a tuple of arguments or one alone; those not run by default are marked as slow."""
    marked = []
    for case in cases:
        arguments = case if isinstance(case, tuple) else (case,)
        marked.append(case if by_default(*arguments) else pytest.param(*arguments, marks=pytest.mark.slow))
    return marked
