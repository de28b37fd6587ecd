"""Agreement at a distance: a positive control, where a learnt choice is worth everything.

    python -m experiments.agreement --length 20 --compare lstm,dynamic:19 --seeds 3
    python -m experiments.agreement --length 20 --model dynamic:19 --seeds 3 --control untrained
    python -m experiments.agreement explain --run-dir DIR --text "w1 a3 w0 b2 )b w4 )a"

`a3` opens a clause of kind a in form 3, `)a` closes it. The last word closes a clause that was
opened anywhere before, and asks for the form in which it was. Nothing in the text says how far back
that is.

    relaxed  the default; length 20:
             dynamic:19 99.54 ± 0.16 %, its control 64.29 ± 1.14 %, lstm 88.47 %
"""

import dataclasses
from typing import ClassVar

from dynskip_jax.config.experiment import Experiment
from dynskip_jax.config.settings import Agent, Settings, with_groups
from dynskip_jax.experiments.layers_config import LayersModel
from dynskip_jax.experiments.number_prediction.config import FAR, RelaxedTraining, SyntheticData


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedAgent(Agent):
    """Skips over time; agents do not choose what lies before the text."""

    empty_slots: ClassVar[str] = "masked"


EXPERIMENT = Experiment(
    name="agreement",
    about=__doc__,
    task="dynskip_jax.experiments.agreement.task:Agreement",
    settings=with_groups(
        Settings,
        data=SyntheticData(length=50, train_examples=50_000),
        model=LayersModel(),
        agent=MaskedAgent(),
        training=RelaxedTraining(sampled_decay=0.5),
    ),
    # Relaxed epochs find the positions of the answers, then four rollouts of each text train hard
    # choices.
    presets={
        "relaxed": FAR
        | dict(agent="content", agent_features=64, relaxed_epochs=4, clip=1.0, epochs=6)
    },
    model="dynamic:49",
    measure="dynskip_jax.experiments.agreement.task:measure_choices",
    draw="dynskip_jax.experiments.agreement.task:draw_choices",
    sample_text="w1 a3 w0 b2 w5 )b w4 c7 w2 )c )a",
    samples=4,
)
