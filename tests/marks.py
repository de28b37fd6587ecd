"""Select which of many test cases run by default; the others are slow tests."""

from collections.abc import Callable, Iterable

import pytest


def and_slow(cases: Iterable, by_default: Callable[..., bool]) -> list:
    """Return all `cases`, with those that `by_default` rejects marked as slow.

    Each case is a tuple of arguments or a single argument.
    """
    marked = []
    for case in cases:
        arguments = case if isinstance(case, tuple) else (case,)
        marked.append(case if by_default(*arguments) else pytest.param(*arguments, marks=pytest.mark.slow))
    return marked
