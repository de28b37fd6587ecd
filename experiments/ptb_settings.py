"""Settings of the Penn Treebank language models: flags, presets, and the library objects they stand for."""

import dataclasses
from typing import Any

from flax import nnx

from dynskip_jax.functional import Previous
from dynskip_jax.models import LanguageModelDropout
from dynskip_jax.tasks.language_modelling import LanguageModellingSettings, uniform
from experiments.cli import CommonFlags, Folder, Real, Text, Whole
from experiments.settings import CommonSettings

# What the agents of presets that fit a CPU are trained with: an Adam of their own, so that REINFORCE's noise
# takes no share of the clipping norm, and the network's updates are those of the baselines.
_AGENT = dict(agent_learning_rate=0.001, entropy_coef=0.01, discount=0.5, baseline="batch", mix=0.5)

# What the medium models of Zaremba et al. (2014) and of those who follow them share.
_LARGE = dict(
    features=650,
    num_layers=2,
    num_steps=35,
    batch_size=20,
    dropout=0.5,
    init_scale=0.05,
    learning_rate=1.0,
    clip=5.0,
)

# Zaremba et al. (2014), the medium model.
_MEDIUM = dict(**_LARGE, epochs=39, decay=1.2, decay_after=6)

# Kim et al. (2016), the large model; no dropout on what the characters make of a word.
_CHARACTERS = dict(**_LARGE, embedding="characters", dropout_inputs=0.0, epochs=25, decay=2.0, plateau=1.0)

# Merity et al. (2018), Section 5. Losses here are summed over a segment, theirs are means over its 70 steps:
# their learning rate of 30 and clipping norm of 0.25 are 30 / 70 and 0.25 x 70.
_AWD = dict(
    features=1150,
    embedding_features=400,
    num_layers=3,
    tied=True,
    num_steps=70,
    random_lengths=True,
    batch_size=20,
    dropout=0.25,
    dropout_words=0.1,
    dropout_inputs=0.4,
    dropout_outputs=0.4,
    dropout_weights=0.5,
    locked=True,
    activation_coef=2.0,
    temporal_coef=1.0,
    weight_decay=1.2e-6,
    init_scale=0.1,
    recurrent_init="by_size",
    epochs=500,
    learning_rate=30 / 70,
    clip=0.25 * 70,
    average="non_monotone",
)

# Zaremba et al. (2014), the small model.
_SMALL = dict(
    **_AGENT,
    features=200,
    num_layers=2,
    num_steps=20,
    batch_size=20,
    dropout=0.0,
    init_scale=0.1,
    learning_rate=1.0,
    decay=2.0,
    clip=5.0,
)

PRESETS: dict[str, dict[str, Any]] = {
    # Their schedule, stopped when dev no longer improves: half way through 13 epochs. λ = 0.5 was ahead of
    # the paper's 1 on dev after one epoch (176.7 against 180.8).
    "small": dict(**_SMALL, epochs=13, decay_after=4, patience=2),
    # A schedule of half that time, for sweeps.
    "sketch": dict(**_SMALL, epochs=4, decay_after=2),
    # Gui et al. (2019), Section Language Modeling, where they say it; Zaremba et al.'s medium elsewhere.
    "paper": _MEDIUM,
    # As `paper`, its agents trained as those of `small`, except for λ.
    "medium": {**_MEDIUM, **_AGENT, "mix": 1.0},
    # Kim et al. (2016), the large and the small model.
    "charlm": _CHARACTERS,
    "charlm_small": {
        **_CHARACTERS,
        **_AGENT,
        "char_maps": (25, 50, 75, 100, 125, 150),
        "num_highway": 1,
        "features": 300,
    },
    # Merity et al. (2018), and the same parts at a size, and with rates, that fit a CPU.
    "awd": _AWD,
    "awd_small": {
        **_AWD,
        **_AGENT,
        "features": 200,
        "embedding_features": 200,
        "num_layers": 2,
        "num_steps": 35,
        "dropout": 0.1,
        "dropout_words": 0.05,
        "dropout_inputs": 0.2,
        "dropout_outputs": 0.2,
        "dropout_weights": 0.2,
        "epochs": 40,
        "learning_rate": 30 / 35,
        "clip": 0.25 * 35,
    },
    # As `paper`, with the choices of the authors' released code.
    "released": dict(
        features=650,
        num_layers=3,
        num_steps=35,
        batch_size=20,
        dropout=0.5,
        init_scale=0.05,
        epochs=100,
        learning_rate=1.0,
        decay=1.2,
        plateau=1.0,
        clip=5.0,
        agent_features=200,
        agent_input="mean",
        agent_init="normal",
        first_step="carried",
        forget_bias=1.0,
        recurrent_init="orthogonal",
        restart_buffer=True,
        reward="probability",
        rl_coef=0.3,
        entropy_coef=0.0,
        evaluation_mode="sample",
    ),
}


@dataclasses.dataclass(frozen=True)
class Flags(CommonFlags):
    """Flags of this experiment."""

    dataset: Text = None
    """Insist on a corpus by name: ptb, or pydoc-topics (the embedded one)."""
    num_layers: Whole = None
    """LSTM layers; the last one has the time skip."""
    num_steps: Whole = None
    """Steps of truncated back-propagation."""
    dropout: Real = None
    """Rate on each layer's input and before the softmax, where the next four do not say."""
    dropout_inputs: Real = None
    """Rate on the first layer's input."""
    dropout_outputs: Real = None
    """Rate before the softmax."""
    dropout_words: Real = None
    """Rate at which whole words are dropped from a segment."""
    dropout_weights: Real = None
    """Rate at which recurrent weights are dropped for a segment."""
    clip: Real = None
    """Largest norm of the gradient."""
    agent_learning_rate: Real = None
    """Gives agents an Adam of their own with this rate; by default they share the network's optimizer."""
    discount: Real = None
    """Of the rewards that follow an action."""
    rollouts: Whole = None
    """How often each stream is read side by side in training, the agents' choices sampled anew."""
    average: Text = None
    """Averaging of the iterates: none, non_monotone (once dev no longer falls, NT-ASGD) or always."""
    start_from: Folder = None
    """A finished run folder of the same model, whose parameters are trained on (fine-tuning)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Every setting, as resolved.

    `decay` divides the learning rate once an epoch after the first `decay_after`, or, with `plateau`, after
    each epoch in which dev perplexity fell by less than that. `recurrent_init` is `uniform` (as all weights),
    `by_size` (every weight of a layer from U(±1/√hidden), as PyTorch does) or, for the top layer's W_h alone,
    `orthogonal`. `restart_buffer` forgets all but the newest state at each segment. With
    `tied`, the last layer has the embedding's size. `average_interval` is the n of NT-ASGD.
    """

    num_layers: int
    num_steps: int
    init_scale: float
    clip: float
    decay: float = 1.0
    embedding: str = "words"
    embedding_features: int | None = None
    char_features: int = 15
    char_maps: tuple[int, ...] = (50, 100, 150, 200, 200, 200, 200)
    num_highway: int = 2
    tied: bool = False
    dropout_words: float = 0.0
    dropout_inputs: float | None = None
    dropout_outputs: float | None = None
    dropout_weights: float = 0.0
    locked: bool = False
    activation_coef: float = 0.0
    temporal_coef: float = 0.0
    weight_decay: float = 0.0
    random_lengths: bool = False
    average: str = "none"
    average_interval: int = 5
    start_from: str | None = None
    decay_after: int = 0
    plateau: float | None = None
    agent_init: str = "uniform"
    agent_learning_rate: float | None = None
    recurrent_init: str = "uniform"
    restart_buffer: bool = False

    def all_dropout(self) -> LanguageModelDropout:
        """Returns what is dropped, and where."""
        return LanguageModelDropout(
            words=self.dropout_words,
            inputs=self.dropout if self.dropout_inputs is None else self.dropout_inputs,
            hidden=self.dropout,
            outputs=self.dropout if self.dropout_outputs is None else self.dropout_outputs,
            weights=self.dropout_weights,
            locked=self.locked,
        )

    def character_options(self) -> dict[str, Any] | None:
        """Returns the options of the embedding, if it is one of characters."""
        if self.embedding == "words":
            return None
        widths = tuple(range(1, len(self.char_maps) + 1))
        return dict(
            char_features=self.char_features, widths=widths, maps=self.char_maps, num_highway=self.num_highway
        )

    def cell_options_of_layers(self) -> tuple[dict[str, Any], ...]:
        """Returns the options of each layer's cell, bottom first.

        Zaremba et al. draw every weight from one uniform distribution; the top layer may differ.
        """
        layers = []
        for size in self.sizes():
            by_size = self.recurrent_init == "by_size"
            weights = uniform(size**-0.5 if by_size else self.init_scale)
            layers.append(dict(kernel_init=weights, recurrent_kernel_init=weights, bias_init=weights))
        weights = layers[-1]["kernel_init"]
        layers[-1] |= dict(agent_kernel_init=weights, agent_bias_init=weights) | self.cell_options()
        if self.recurrent_init == "orthogonal":
            layers[-1]["recurrent_kernel_init"] = nnx.initializers.orthogonal()
        return tuple(layers)

    def sizes(self) -> tuple[int, ...]:
        """Returns the size of each layer's state, bottom first; tied, the last is as large as a word."""
        last = self.embedding_features if self.tied and self.embedding_features else self.features
        return (self.features,) * (self.num_layers - 1) + (last,)

    def task_settings(self, model: str) -> LanguageModellingSettings:
        """Returns what the task of a model needs to know."""
        skips = (Previous(),) * (self.num_layers - 1) + (self.skip(model),)
        return LanguageModellingSettings(
            skips=skips,
            features=self.sizes(),
            **self.recurrent_options(),
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            dropout=self.all_dropout(),
            dtype=self.dtype,
            init_scale=self.init_scale,
            cell_options=self.cell_options_of_layers(),
            objective=self.agent_objective(skips[-1].is_stochastic),
            character_options=self.character_options(),
            embedding_features=self.embedding_features,
            tied=self.tied,
            activation_coef=self.activation_coef,
            temporal_coef=self.temporal_coef,
            random_lengths=self.random_lengths,
            epochs=self.epochs,
            num_seeds=len(self.all_seeds(model)),
            sweep=self.sweep(model),
            restart_buffer=self.restart_buffer,
            evaluation_mode=self.evaluation_mode,
        )
