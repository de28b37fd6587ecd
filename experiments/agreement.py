"""Agreement at a distance: a positive control, where a learnt choice is worth everything.

    python -m experiments.agreement --compare lstm,dynamic:49
    python -m experiments.agreement --model dynamic:49 --control untrained
    python -m experiments.agreement explain --run-dir DIR --text "w1 a3 w0 b2 )b w4 )a"

Text by a grammar (`dynskip_jax.data.agreement`): `a3` opens a clause of kind a in form 3, `)a` closes it.
The last word closes a clause that was opened anywhere before, and asks for the form in which it was. Nothing
in the text says how far back that is: the agent compares a query with the stored states.
"""

import dataclasses
from typing import Any

from dynskip_jax.settings import setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Command
from experiments.settings import Data, EvenAgent, Model, Numbers, Settings, Training
from experiments.text import EXPLAIN, PREDICT

PRESETS: dict[str, dict[str, Any]] = {
    # As the preset `far` of number prediction: relaxed epochs find where the answers stand, four rollouts of
    # each text make the choice hard.
    "relaxed": dict(
        agent="content",
        agent_features=64,
        empty_slots="masked",
        relaxation="soft",
        relaxed_epochs=4,
        relaxed_entropy_coef=0.0,
        rollouts=4,
        baseline="rollouts",
        entropy="exact",
        entropy_coef=0.0,
        clip=1.0,
        epochs=6,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreementExamples(Data):
    """The examples."""

    length: int = setting(50, "Words of the longest text, 5 to 500; others are shorter.", at_least=5)
    train_examples: int = setting(50_000, "Training examples.", at_least=1)
    data_seed: int = setting(0, "Of the texts.", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreementModel(Model):
    """What the network is made of."""

    features: int = setting(64, "Size of every layer's state.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreementTraining(Training):
    """For how long and how fast."""

    epochs: int = setting(6, "Passes over the training data; a run folder's may grow.", at_least=1)
    batch_size: int = setting(64, "Texts of a training step.", at_least=1)
    learning_rate: Numbers = setting(0.003, "Initial learning rate.", above=0, sweep=True)
    sampled_decay: float = setting(
        0.5, "Factor on the learning rate, once an epoch after the relaxed epochs.", above=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreementSettings(Settings):
    """All settings of agreement."""

    data: AgreementExamples = dataclasses.field(default_factory=AgreementExamples)
    model: AgreementModel = dataclasses.field(default_factory=AgreementModel)
    agent: EvenAgent = dataclasses.field(default_factory=EvenAgent)
    training: AgreementTraining = dataclasses.field(default_factory=AgreementTraining)


COMMAND = Command(
    name="agreement",
    about=__doc__,
    settings=AgreementSettings,
    presets=PRESETS,
    default_model="dynamic:49",
    experiment="experiments.agreement_experiment:Agreement",
    default_preset=lambda given: "relaxed",
    subcommands={"predict": PREDICT, "explain": EXPLAIN, "ceiling": CEILING},
)

if __name__ == "__main__":
    from experiments import agreement, cli

    cli.run_main(lambda: cli.main(agreement.COMMAND))
