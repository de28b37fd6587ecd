"""Settings that experiments share: layers, their dropout, and averaged weights."""

import dataclasses
from typing import Literal

from dynskip_jax.config.flags import Layers, Natural, Rate, Weight
from dynskip_jax.config.settings import Model, Training
from dynskip_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersModel(Model):
    """What the network is made of."""

    num_layers: Layers = 1
    """Number of layers."""
    dropout: tuple[Rate, ...] = (0.0,)
    """Dropout rate, or three: of the first layer's input, between layers, before the output layer;
    taggers also take four: with that after the first layer second.
    """

    def __post_init__(self) -> None:
        if len(self.dropout) not in (1, 3, 4):
            raise UserError("--dropout takes one rate, three or four")

    @property
    def dropout_rates(self) -> tuple[float, ...]:
        """Dropout rate of each layer's input, bottom first, and before the output layer."""
        # Which of the given rates each of the four places has.
        places = {1: (0, 0, 0, 0), 3: (0, 1, 1, 2), 4: (0, 1, 2, 3)}[len(self.dropout)]
        inputs, first, between, output = (self.dropout[place] for place in places)
        return (
            inputs,
            *([first, *[between] * (self.num_layers - 2)] if self.num_layers > 1 else []),
            output,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegularizedModel(LayersModel):
    """What the network is made of."""

    dropout_words: Rate = 0.0
    """Rate at which whole words are dropped."""
    dropout_weights: Rate = 0.0
    """Dropout rate on recurrent weights."""
    locked: bool = False
    """Drop the same features at all steps of a sequence (variational dropout)."""
    zoneout: Rate = 0.0
    """Rate at which units of the state keep their value."""

    @property
    def activation_coefs(self) -> tuple[float, float]:
        """α of AR and β of TAR, which the recipe `awd` has (Merity et al. 2018)."""
        return (2.0, 1.0) if self.recipe == "awd" else (0.0, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragedTraining(Training):
    """For how long and how fast."""

    weight_decay: Weight = 0.0
    """Add this times the weights to the gradient."""
    average: Literal["none", "non_monotone", "always", "ema"] = "none"
    """Average the weights: always, once dev stops improving (NT-ASGD: non_monotone), or recent ones
    (ema: exponentially, with decay 0.999).
    """
    average_after: Natural = 0
    """Epochs before averaging may begin."""
