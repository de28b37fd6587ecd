"""Parts of speech and CCG categories: Wu et al. (2016), skips over depth.

    python -m experiments.pos --data DIR --tag upos --compare lstm,dynamic:5
    python -m experiments.pos --preset deep --depth-skip gated_output --model lstm
    python -m experiments.pos --dataset columns --data CCG --preset paper --model lstm --unknown-tags wrong
    python -m experiments.pos predict --run-dir DIR < text

A softmax at each word, over words, characters, prefixes and suffixes. Test accuracy of UPOS (English EWT) and
wall time on one CPU core, other jobs running:

    preset  what it is                                        model                        test    time
    small   the default, 10 epochs, three seeds               lstm                95.26 ± 0.04   13 min
    deep    7 layers of 64 units, 4 epochs, two seeds         no depth skip       91.68 ± 0.55   11 min
                                                              gated_output        94.92 ± 0.14   19 min
    paper   Wu et al.: 7 layers of 512 units, window of 3, one sentence at a time: not measured

Without --data the English treebank of Universal Dependencies is looked for in $DYNSKIP_DATA_DIR/ud_ewt
(--tag upos or xpos). Others: `--dataset wsj` (NLTK's treebank.zip, in $DYNSKIP_DATA_DIR/nltk), and folders
of your own with files for train, dev and test: `--dataset conllu`, `word_tag` (word/tag pairs, a sentence on
each line), or `columns` (a word on each line, its tag in the last column). CCG supertagging: write sections
02-21, 00 and 23 of CCGbank as train.txt, dev.txt and test.txt, a word and its category on each line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.tagging import (
    AGENT,
    TAGGER_COMMANDS,
    ReadCorpus,
    TaggerData,
    TaggerExperiment,
    TaggerModel,
    TaggerSettings,
)
from dynskip_jax.lazy import LazyModule

if TYPE_CHECKING:
    from dynskip_jax.data.tagged import TaggedCorpus
from dynskip_jax.settings import setting

tagged_corpus = LazyModule("dynskip_jax.data.tagged")

_SMALL = dict(
    **AGENT,
    features=100,
    affixes=5,
    capital_features=5,
    learning_rate=0.002,
    inverse_decay=0.05,
    epochs=15,
    patience=3,
)

PRESETS: dict[str, dict[str, Any]] = {
    "small": _SMALL,
    "deep": {**_SMALL, "features": 64, "num_layers": 7, "characters": "none", "dropout_between": "ends",
             "depth_skip": "gated_output"},
    # Wu et al. (2016), Section 6.1.2. Agents share the network's optimizer; Eq. 5 of Gui et al. (2019) as
    # printed.
    "paper": dict(
        features=512,
        num_layers=7,
        depth_skip="gated_output",
        embedding_features=200,
        window=3,
        characters="none",
        affixes=5,
        affix_features=5,
        capital_features=5,
        lowercase=True,
        digits="nine",
        unknown_rate=0.0,
        init_gain=0.1,
        dropout=0.5,
        dropout_inputs=0.25,
        dropout_between="ends",
        optimizer="sgd",
        learning_rate=0.02,
        clip=None,
        batch_size=1,
        epochs=30,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOfSpeechData(TaggerData):
    """The tagged sentences, and word vectors."""

    dataset: Literal["ud", "wsj", "conllu", "word_tag", "columns"] = shared.dataset("ud")
    split_seed: int = shared.split_seed(0, needs={"dataset": "wsj"})
    tag: Literal["upos", "xpos"] = setting(
        "upos", "Predict universal tags, or those of the treebank.", needs={"dataset": ("ud", "conllu")}
    )
    unknown_tags: Literal["error", "wrong"] = setting(
        "error", "Stop at tags of dev and test that train lacks, or count them as wrong (for CCG)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOfSpeechModel(TaggerModel):
    """What the network is made of; sizes of layers are those of each direction."""

    output: Literal["crf", "softmax"] = shared.output("softmax")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOfSpeechSettings(TaggerSettings):
    """All settings of the taggers of words."""

    data: PartOfSpeechData = dataclasses.field(default_factory=PartOfSpeechData)
    model: PartOfSpeechModel = dataclasses.field(default_factory=PartOfSpeechModel)


# Test accuracy of UDPipe on English EWT, with the treebank's words (UD 2.3; the treebank has changed since).
PUBLISHED = {"ud_ewt, UPOS": 0.944, "ud_ewt, XPOS": 0.939}


class PartOfSpeech(TaggerExperiment):
    """See `Experiment`."""

    name = "pos"
    settings_type = PartOfSpeechSettings
    presets = PRESETS
    default_model = "dynamic:5"
    commands = TAGGER_COMMANDS
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_sentence_accuracy": ("whole sentences", ".2%"),
    }
    published_sizes = {  # noqa: RUF012 (read only)
        f"ud_ewt, {tag}": {"train": 12_544, "dev": 2_001, "test": 2_077} for tag in ("UPOS", "XPOS")
    }
    sample_text = "The old man the boats , and the young ones watch them"

    @property
    def unknown_tags(self) -> bool:
        """See `TaggerExperiment`."""
        return self.settings.data.unknown_tags == "wrong"

    def load_corpus(self) -> TaggedCorpus:
        """See `TaggerExperiment`."""
        data = self.settings.data
        corpus = tagged_corpus.find_part_of_speech_corpus(
            data.dataset,
            data.data,
            tag=data.tag,
            word_column=data.word_column,
            tag_column=data.tag_column,
            seed=data.split_seed,
        )
        if not self.unknown_tags:
            corpus.check_tags(corpus.train_tags, ": --unknown-tags wrong counts such words as wrong")
        return corpus

    def published(self, models: Sequence[str], data: ReadCorpus) -> Sequence[tuple[str, Mapping[str, float]]]:
        """See `Experiment`; the accuracy of UDPipe on the same treebank."""
        value = PUBLISHED.get(data.name)
        return [] if value is None else [("UDPipe, UD 2.3", {"test_accuracy": value})]


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
