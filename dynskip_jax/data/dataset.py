"""The value `Dataset`: what an experiment reads."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What an experiment reads."""

    name: str
    sizes: Mapping[str, int]  # by name, such as the number of examples of each split
    fingerprint: str  # hash of everything that is read
    source: str  # place where the data was found, as a phrase
    content: Any  # the data itself, in the form that the task takes
    vocabulary: Any = None  # stored in run folders, so that models can be used without the data
    lines: Sequence[str] = ()  # printed before training
    vectors: Any = None  # pretrained, with which embeddings begin
