"""Tasks, each in its own file: data, model, batches, loss, score, texts and pictures."""

import importlib
from typing import Any

_MODULES = dict(
    Classification="classification",
    ExampleTask="task",
    Forward="task",
    LanguageModelling="language",
    Learner="learner",
    LossOutput="task",
    SentencePairs="classification",
    Tagging="tagging",
    Task="task",
)

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import and return a name on first access: a task needs no other tasks."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
