"""Named entities and chunks: Gui et al. (2019), Table 2.

    python -m experiments.conll2003 --data DIR --compare lstm,dynamic:5 --seeds 3
    python -m experiments.conll2003 --dataset conll2000 --data conll2000.zip
    python -m experiments.conll2003 predict --run-dir DIR < text
    python -m experiments.conll2003 compare --run-dir DIR --data DIR

A BiLSTM-CRF over words and their characters, whose tags follow BIOES; F1 as conlleval counts it. Presets:
`small` (the default, for two cores), `paper` (2 x 200 units, λ = 1, K = 5, dropout 0.5, the optimizer of Ma &
Hovy 2016; with --embeddings glove.6B.100d.txt the paper's setting), `ncrfpp` (the recipe of NCRF++).

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/conll2003 (eng.train, eng.testa, eng.testb), the
chunks of CoNLL-2000 in $DYNSKIP_DATA_DIR/conll2000 or in NLTK's archive in $DYNSKIP_DATA_DIR/nltk. A folder
of your own, with one word on each line and its tag in the last column, is `--dataset columns --scheme BIO2`.
"""

import dataclasses
from typing import Any, Literal

from dynskip_jax.settings import setting
from experiments.command_line import Command
from experiments.tagger_settings import AGENT, SUBCOMMANDS, TaggerData, TaggerSettings

PRESETS: dict[str, dict[str, Any]] = {
    # For two cores: Adam needs a third of the epochs that gradient descent takes.
    "small": dict(
        **AGENT,
        features=100,
        capital_features=5,
        learning_rate=0.002,
        decay=0.05,
        epochs=20,
    ),
    # Gui et al. (2019), Section Named Entity Recognition, where they say it; else Ma & Hovy (2016), whose
    # loss is a mean over the sentences of a batch, as ours is. Eq. 5 as printed.
    "paper": dict(
        features=200,
        mix=1.0,
        dropout=0.5,
        dropout_characters=0.5,
        digits="zero",
        unknown_rate=0.0,
        optimizer="sgd",
        momentum=0.9,
        learning_rate=0.015,
        decay=0.05,
        clip=5.0,
        batch_size=10,
        epochs=100,
        patience=20,
    ),
    # NCRF++ (Yang & Zhang 2018). Its loss is a sum over the 10 sentences of a batch, ours their mean: its
    # learning rate of 0.015 is 0.15. Its 200 units are those of both directions.
    "ncrfpp": dict(
        **AGENT,
        features=100,
        char_outputs=50,
        lowercase=False,
        digits="zero",
        unknown_rate=0.0,
        optimizer="sgd",
        learning_rate=0.15,
        decay=0.05,
        clip=None,
        batch_size=10,
        epochs=100,
        patience=20,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityData(TaggerData):
    """The tagged sentences, and word vectors."""

    dataset: Literal["conll2003", "conll2000", "columns"] = setting(
        "conll2003",
        "conll2003 (entities), conll2000 (chunks; a tenth of train is dev), columns: a folder of your own.",
    )
    columns: tuple[int, ...] | None = setting(
        None,
        "Columns of the files, counted from 0, that are read beside the words: 1 is CoNLL's parts of speech.",
        at_least=1,
    )
    scheme: Literal["IOB1", "BIO2", "BIOES"] | None = setting(
        None, "That of the files' tags; by default IOB1 for conll2003, else BIO2."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntitySettings(TaggerSettings):
    """All settings of the taggers of entities."""

    data: EntityData = dataclasses.field(default_factory=EntityData)


COMMAND = Command(
    name="conll2003",
    about=__doc__,
    settings=EntitySettings,
    presets=PRESETS,
    default_model="dynamic:5",
    experiment="experiments.conll2003_experiment:CoNLL2003",
    default_preset=lambda given: "small",
    subcommands=SUBCOMMANDS,
)

if __name__ == "__main__":
    from experiments import cli, conll2003

    cli.run_main(lambda: cli.main(conll2003.COMMAND))
