"""Named entities and chunks: Gui et al. (2019), Table 2.

    python -m experiments.conll2003 --data DIR --compare lstm,dynamic:5 --seeds 3
    python -m experiments.conll2003 --dataset conll2000 --data conll2000.zip
    python -m experiments.conll2003 predict --run-dir DIR < text

A BiLSTM-CRF over words and their characters, whose tags follow BIOES; F1 as conlleval counts it.

    small   one layer of 100 units, the default;
            12 epochs: lstm 84.93 ± 0.16, dynamic:5 84.80 ± 0.49
    paper   with --embeddings glove.6B.100d.txt the paper's setting
    ncrfpp  the recipe of NCRF++

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/conll2003 (eng.train, eng.testa,
eng.testb). A folder of your own, a word on each line and its tag in the last column, is `--dataset
columns --scheme BIO2`.
"""

import dataclasses
from typing import Annotated, Literal

from dynskip_jax.config.experiment import Experiment, Published, columns_of
from dynskip_jax.config.flags import Bounds
from dynskip_jax.config.settings import with_groups
from dynskip_jax.experiments.tagger_config import AGENT, SMALL, TAGGER, TaggerData, TaggerSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityData(TaggerData):
    """The tagged sentences, and word vectors."""

    dataset: Literal["conll2003", "conll2000", "columns"] = "conll2003"
    """Name of the corpus, or the format of your own files."""
    columns: tuple[Annotated[int, Bounds(0, 1000)], ...] | None = None
    """Other columns that are read, counted from 0; 1: CoNLL's parts of speech."""
    scheme: Literal["IOB1", "BIO2", "BIOES"] | None = None
    """Scheme of the files' tags; by default the corpus's own, or BIO2 (columns)."""


_CONLL2003 = {"train": 14_041, "dev": 3_250, "test": 3_453}
_CONLL2000 = {"train": 8_043, "dev": 893, "test": 2_012}
_RANDOM = "Huang et al. 2015, random vectors, BiLSTM-CRF and features"

EXPERIMENT = Experiment(
    name="conll2003",
    about=__doc__,
    task="dynskip_jax.experiments.tagger_task:EntityTagging",
    settings=with_groups(TaggerSettings, data=EntityData()),
    presets={
        "small": SMALL | dict(epochs=20, patience=5),
        # Gui et al. (2019), Section Named Entity Recognition, with Eq. 5 as printed; values that it
        # does not give are those of Ma & Hovy (2016). Both stop early: epochs and patience are
        # ours, as is a CRF whose transitions do not depend on the words.
        "paper": dict(features=200, recipe="ma2016", mix=1.0, reward="probability")
        | dict(lowercase=False, digits="keep", unknown_rate=0.0)
        | dict(optimizer="momentum", learning_rate=0.015, inverse_decay=0.05)
        | dict(batch_size=10, epochs=100, patience=20),
        # NCRF++ (Yang & Zhang 2018). Its loss is a sum over the 10 sentences of a batch, the loss
        # here is a mean: its learning rate of 0.015 becomes 0.15. Its 200 units are those of both
        # directions together.
        "ncrfpp": AGENT
        | dict(features=100, recipe="ncrfpp", lowercase=False, digits="zero", unknown_rate=0.0)
        | dict(optimizer="sgd", learning_rate=0.15, inverse_decay=0.05, clip=None)
        | dict(batch_size=10, epochs=100, patience=20),
    },
    columns=columns_of("f1", "F1", ".2%") | {"test_accuracy": ("test accuracy", ".2%")},
    **TAGGER,
    published=(
        Published(
            "conll2003",
            ["test_f1"],
            [("", _RANDOM, 0.8426)],
            sizes=_CONLL2003,
            when={"embeddings": (None,)},
            note="Word vectors begin at random: not comparable with F1 above 90 from pretrained "
            "ones.",
        ),
        Published(  # Gui et al. (2019), Table 2; the plain BiLSTM is that of Ma and Hovy (2016)
            "conll2003",
            ["test_f1"],
            [
                ("lstm", "paper: Ma and Hovy 2016", 0.9121),
                ("fixed:3", "paper: fixed skip 3", 0.9114),
                ("fixed:5", "paper: fixed skip 5", 0.9116),
                ("attention:5", "paper: attention", 0.9123),
                ("dynamic:5", "paper: dynamic skip, λ=1, K=5", 0.9156),
            ],
            sizes=_CONLL2003,
            note="The paper's word vectors are GloVe, 100 numbers.",
        ),
        Published(
            "conll2000",
            ["test_f1"],
            [("", _RANDOM, 0.9413)],
            sizes=_CONLL2000,
            when={"embeddings": (None,)},
        ),
    ),
    sample_text="Peter Blackburn of the European Commission flew from BRUSSELS to New York",
)
