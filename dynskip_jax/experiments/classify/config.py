"""Your own texts with a class each: any labels, from TSV, CSV or JSON lines.

    python -m experiments.classify --data DIR
    python -m experiments.classify --data reviews.csv --text-column review --label-column stars
    python -m experiments.classify predict --run-dir DIR < texts.txt
    python -m experiments.classify explain --run-dir DIR --text "not as bad as they say"

DIR is a file, or holds files for train, dev and test in the usual names (train.tsv, valid.csv,
test.jsonl). The first line of a table names its columns. Missing splits are drawn from train.
"""

import dataclasses

from dynskip_jax.config.experiment import Experiment
from dynskip_jax.config.settings import with_groups
from dynskip_jax.experiments.imdb.config import EXPERIMENT as IMDB
from dynskip_jax.experiments.sentence_config import ReviewData, SentenceSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyData(ReviewData):
    """The texts."""

    text_column: str = "text"
    """Column or JSON key of the texts."""
    label_column: str = "label"
    """Column or JSON key of the classes."""


EXPERIMENT = Experiment(
    name="classify",
    about=__doc__,
    task="dynskip_jax.experiments.sentence_task:LabelledTexts",
    settings=with_groups(SentenceSettings, data=ClassifyData()),
    presets={name: IMDB.presets[name] for name in ("small", "strong")},
    model="dynamic:3",
    sample_text="not as bad as they say",
    samples=4,
)
