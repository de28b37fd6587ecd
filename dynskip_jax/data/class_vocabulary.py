"""Store the vocabulary of a classifier together with the names of its classes."""

import dataclasses
from typing import Any

from dynskip_jax.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class ClassVocabulary(Vocabulary):
    """A vocabulary of words with the names of the classes.

    Attributes:
        classes: Name of each class; class i is `classes[i]`.
    """

    classes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the words and classes as JSON values, for `from_json`."""
        return {"words": super().to_json(), "classes": list(self.classes)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "ClassVocabulary":
        """Return the vocabulary for the JSON values that `to_json` returned."""
        words = Vocabulary.from_json(stored["words"])
        return cls(words.tokens, tuple(stored["classes"]))
