"""Parts of speech and CCG categories: Wu et al. (2016), skips over depth.

    python -m experiments.pos --data DIR --tag upos --compare lstm,dynamic:5
    python -m experiments.pos --preset deep --depth-skip gated_output --model lstm
    python -m experiments.pos --dataset columns --data CCG --preset paper --model lstm
    python -m experiments.pos predict --run-dir DIR < text

A softmax at each word, over words, characters, prefixes and suffixes.

    small  one layer of 100 units, the default; UPOS of English EWT, 10 epochs: lstm 95.26 ± 0.04 %
    deep   7 layers of 64 units
    paper  Wu et al.: 7 layers of 512 units, window of 3, one sentence at a time

Without --data the English treebank of Universal Dependencies is looked for in
$DYNSKIP_DATA_DIR/ud_ewt; --data may name any folder of CoNLL-U files. With `--dataset columns` it
names files of your own: a word on each line, its tag in the last column.
"""

import dataclasses
from typing import Any, Literal

from dynskip_jax.config.experiment import Experiment, Published
from dynskip_jax.config.settings import with_groups
from dynskip_jax.experiments.tagger_config import SMALL, TAGGER, TaggerData, TaggerSettings

_SMALL: dict[str, Any] = SMALL | dict(output="softmax", affixes=5, epochs=15, patience=3)
_DEEP: dict[str, Any] = dict(num_layers=7, characters="none", depth_skip="gated_output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOfSpeechData(TaggerData):
    """The tagged sentences, and word vectors."""

    dataset: Literal["ud", "columns"] = "ud"
    """Name of the corpus, or the format of your own files."""
    tag: Literal["upos", "xpos"] = "upos"
    """Predict universal tags, or those of the treebank."""


EXPERIMENT = Experiment(
    name="pos",
    about=__doc__,
    task="dynskip_jax.experiments.tagger_task:WordTagging",
    settings=with_groups(TaggerSettings, data=PartOfSpeechData()),
    presets={
        "small": _SMALL,
        "deep": _SMALL | _DEEP | dict(features=64, dropout=(0.5, 0.5, 0.0, 0.5)),
        # Wu et al. (2016), Section 6.1.2, with Eq. 5 of Gui et al. (2019) as printed.
        "paper": _DEEP
        | dict(
            features=512,
            recipe="wu2016",
            output="softmax",
            embedding_features=200,
            affixes=5,
            mix=1.0,
        )
        | dict(dropout=(0.25, 0.5, 0.0, 0.5), unknown_rate=0.0, optimizer="sgd", learning_rate=0.02)
        | dict(clip=None, batch_size=1, epochs=30, patience=5),
    },
    **TAGGER,
    # UDPipe on English EWT, with the treebank's words (UD 2.3; the treebank has changed since).
    published=tuple(
        Published(
            f"ud_ewt, {tag}",
            ["test_accuracy"],
            [("", "UDPipe, UD 2.3", value)],
            sizes={"train": 12_544, "dev": 2_001, "test": 2_077},
        )
        for tag, value in (("UPOS", 0.944), ("XPOS", 0.939))
    ),
    sample_text="The old man the boats , and the young ones watch them",
)
