"""Penn Treebank language models: Gui et al. (2019), Table 3.

    python -m experiments.ptb --data DIR --preset small --compare lstm,dynamic:5
    python -m experiments.ptb explain --run-dir DIR --text "the company said it will buy"
    python -m experiments.ptb generate --run-dir DIR --words 100
    python -m experiments.ptb evaluate --run-dir DIR --data DIR --cache 500

    small     2 x 200, no dropout, the default: lstm 115.11 ± 0.45, dynamic:5 111.59 ± 0.54 on test
    sketch    the same in 4 epochs, for sweeps
    far       as sketch; dynamic:200 copies words
    copying   dynamic:500 copies words by what followed, dropout 0.2, 6 epochs
    paper     2 x 650, dropout 0.5, 39 epochs
    released  as the authors' code does it
    charlm    words read by their characters (Kim et al. 2016); charlm_small: with fewer
    awd       the recipe of Merity et al. (2018); awd_small: with fewer units

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/ptb, in the TFDS cache and at its
upstream address. With --dataset pydoc-topics, or if there is none, the model trains on an embedded
corpus, in minutes. The presets paper, released, charlm and awd ask for their data instead.
"""

import dataclasses
import functools
from typing import Any

from dynskip_jax.config.experiment import Experiment, Published, columns_of
from dynskip_jax.config.settings import Data, with_groups
from dynskip_jax.experiments.language_config import (
    AGENT,
    COPY_BY_CONTENT,
    LANGUAGE,
    LanguageSettings,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData(Data):
    """The text; any folder with train, valid and test files will do."""

    dataset: str | None = None
    """Name of the corpus."""


# Zaremba et al. (2014), the small and the medium model.
_SMALL: dict[str, Any] = AGENT | dict(num_steps=20, decay=2.0)
_MEDIUM: dict[str, Any] = dict(features=650, dropout=(0.5,), init_scale=0.05, mix=1.0)
# Kim et al. (2016), the large model; no dropout on the word embeddings made from characters.
_CHARLM: dict[str, Any] = _MEDIUM | dict(
    recipe="charlm", dropout=(0.0, 0.5, 0.5), epochs=25, decay=2.0, decay_after="plateau"
)


def _awd(num_steps: int) -> dict[str, Any]:
    """Return the recipe of Merity et al. (2018), as in their released code.

    Losses here are sums over a segment, theirs are means. So their rate of 30 is divided by its
    steps, and clipping and weight decay are multiplied by them.
    """
    recipe = dict(recipe="awd", locked=True, num_steps=num_steps, average="non_monotone")
    rates = dict(
        learning_rate=30 / num_steps, clip=0.25 * num_steps, weight_decay=1.2e-6 * num_steps
    )
    return recipe | rates


# Gui et al. (2019), Table 3, averages of ten runs; Merity et al. (2018).
_published = functools.partial(
    Published,
    "ptb",
    ("dev_perplexity", "test_perplexity"),
    sizes={"train": 929_589, "dev": 73_760, "test": 82_430},
)

EXPERIMENT = Experiment(
    name="ptb",
    about=__doc__,
    task="dynskip_jax.experiments.language_task:WordModelling",
    settings=with_groups(LanguageSettings, data=TextData()),
    presets={
        # The schedule of Zaremba et al., with early stopping on dev about half way through the 13
        # epochs.
        "small": _SMALL | dict(epochs=13, decay_after=4, patience=2),
        "sketch": _SMALL | dict(epochs=4, decay_after=2),
        "far": _SMALL | COPY_BY_CONTENT | dict(epochs=4, decay_after=2, model="dynamic:200"),
        # Copying by what followed: the agent compares where we were and what came next there.
        "copying": _SMALL
        | COPY_BY_CONTENT
        | dict(agent_keys="followed", epochs=6, decay_after=3, dropout=(0.2,), model="dynamic:500"),
        # Gui et al. (2019), Section Language Modeling; values that it does not give are those of
        # the medium model of Zaremba et al. (2014).
        "paper": _MEDIUM | dict(epochs=39, decay=1.2, decay_after=6),
        # Kim et al. (2016), the large and the small model.
        "charlm": _CHARLM,
        "charlm_small": _CHARLM | AGENT | dict(mix=0.5, recipe="charlm_small", features=300),
        # Merity et al. (2018), and the same recipe with sizes and rates that fit a CPU.
        "awd": _awd(70)
        | dict(features=1150, embedding_features=400, num_layers=3, mix=1.0, epochs=500)
        | dict(dropout=(0.4, 0.25, 0.4), dropout_words=0.1, dropout_weights=0.5),
        "awd_small": _awd(35)
        | (AGENT | dict(features=200, embedding_features=200, epochs=40))
        | dict(dropout=(0.2, 0.1, 0.2), dropout_words=0.05, dropout_weights=0.2),
        # Like `paper`, with the settings of the authors' released code.
        "released": _MEDIUM
        | dict(recipe="released", num_layers=3, epochs=100, decay=1.2, decay_after="plateau")
        | dict(agent_features=200, reward="probability", rl_coef=0.3, entropy_coef=0.0)
        | dict(evaluation_mode="sample"),
    },
    columns=columns_of("perplexity", "perplexity", ".2f"),
    **LANGUAGE,
    commands=("explain", "generate", "evaluate"),
    published=(
        _published(
            [
                ("lstm", "paper: CharLM", 82.0, 78.9),
                ("fixed:3", "paper: CharLM, fixed skip 3", 83.6, 80.2),
                ("fixed:5", "paper: CharLM, fixed skip 5", 84.9, 80.9),
                ("attention:5", "paper: CharLM with attention", 82.2, 79.0),
                ("dynamic:5", "paper: CharLM, dynamic skip, λ=1, K=5", 79.9, 76.5),
            ],
            when={"recipe": ("charlm", "charlm_small")},
            note="The published models have 2 layers of 650 units.",
        ),
        _published(
            [("lstm", "Merity et al. (2018): AWD-LSTM", 60.0, 57.3)],
            when={"recipe": ("awd",)},
            note="The published model has 3 layers, two of them with 1,150 units.",
        ),
        _published(
            [
                ("lstm", "paper: Regularized LSTM", 86.2, 82.7),
                ("fixed:3", "paper: fixed skip 3", 85.3, 81.5),
                ("fixed:5", "paper: fixed skip 5", 86.2, 82.0),
                ("attention:5", "paper: attention", 85.1, 81.4),
                ("dynamic:5", "paper: dynamic skip, λ=1, K=5", 82.5, 78.5),
            ],
            note="The published models have 2 layers of 650 units.",
        ),
    ),
    sample_text="the company said it will buy a N N stake in the bank",
    samples=10,
    final_rows=1,  # one stream for each split: tokens have their full context
)
