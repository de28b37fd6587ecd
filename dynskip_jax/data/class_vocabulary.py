"""A vocabulary of words with the names of the classes: what a classifier of any labels stores."""

import dataclasses
from typing import Any

from dynskip_jax.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class ClassVocabulary(Vocabulary):
    """Words and classes.

    Attributes:
        classes: the name of each class, in the order of their numbers.
    """

    classes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {"words": super().to_json(), "classes": list(self.classes)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "ClassVocabulary":
        """Return what `to_json` described."""
        words = Vocabulary.from_json(stored["words"])
        return cls(words.tokens, tuple(stored["classes"]))
