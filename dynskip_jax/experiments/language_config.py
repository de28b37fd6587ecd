"""Settings of all language models."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from dynskip_jax.config.flags import Count, Natural, Positive, Size
from dynskip_jax.config.settings import Settings
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.layers_config import AveragedTraining, RegularizedModel

# What all language models have.
LANGUAGE: dict[str, Any] = dict(
    read="dynskip_jax.experiments.language_task:read_words",
    draw="dynskip_jax.experiments.language_task:draw_words",
)

# Training of the agents in presets that fit a CPU. They have their own Adam, because gradient
# descent with the network's rate moves them by the whole clipping norm in each step.
AGENT: dict[str, Any] = dict(
    agent_learning_rate=0.001, entropy_coef=0.01, discount=0.5, baseline="batch"
)

# Presets that copy words from far back. The agent learns only from the exact gradient
# of copying: with λ = 0 only the previous state enters.
COPY_BY_CONTENT: dict[str, Any] = dict(
    mix=0.0,
    copy="expected",
    agent="content",
    agent_features=200,
    agent_learning_rate=0.003,
    rl_coef=0.0,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel(RegularizedModel):
    """What the network is made of."""

    recipe: Literal["none", "released", "charlm", "charlm_small", "awd"] = "none"
    """Details that have no flag: released (Gui et al. 2019: what agents see, first steps, weights),
    charlm (Kim et al. 2016: characters), awd (Merity et al. 2018: tied, random lengths, AR, TAR,
    weights).
    """
    init_scale: Positive = 0.1
    """Draw weights from U(-scale, scale)."""
    embedding_features: Size | None = None
    """Size of a word's embedding, except with charlm."""
    copy: Literal["none", "chosen", "expected"] = "none"
    """Copy words of the last k steps: the one after the chosen state, or all by probability
    (expected).
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageTraining(AveragedTraining):
    """For how long and how fast."""

    num_steps: Count = 35
    """Steps of truncated back-propagation."""
    decay: Positive = 1.0
    """Divide the learning rate by this once an epoch, after --decay-after."""
    decay_after: Natural | Literal["plateau"] = 0
    """Epochs before --decay begins; plateau: after each epoch in which dev perplexity fell by less
    than 1.
    """
    start_from: Path | None = None
    """A finished run folder of the same model, whose parameters are trained on (fine-tuning)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageSettings(Settings):
    """All settings of the language models."""

    model: LanguageModel = LanguageModel(num_layers=2)
    training: LanguageTraining = LanguageTraining(optimizer="sgd", learning_rate=1.0, clip=5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The fourth rate is that of taggers, whose first layer has its own.
        if len(self.model.dropout) == 4:
            raise UserError("--dropout of a language model takes one rate or three: see --help")
