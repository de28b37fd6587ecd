"""Select which of many test cases run by default; the others are slow tests."""

from collections.abc import Callable, Iterable

import pytest


def and_slow(cases: Iterable, by_default: Callable[..., bool]) -> list:
    """Return all `cases`, those that `by_default` rejects marked slow; a case is an argument or a
    tuple.
    """
    marked = []
    for case in cases:
        arguments = case if isinstance(case, tuple) else (case,)
        marked.append(
            case if by_default(*arguments) else pytest.param(*arguments, marks=pytest.mark.slow)
        )
    return marked
