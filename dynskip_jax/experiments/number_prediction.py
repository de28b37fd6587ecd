"""Number prediction: Gui et al. (2019), Table 5.

    python -m experiments.number_prediction --length 11 --compare lstm,dynamic:10 --epochs 10 --patience 2
    python -m experiments.number_prediction --length 201 --model dynamic:200
    python -m experiments.number_prediction explain --run-dir DIR --text "3 1 4 1 5 9 2 6 5 3 4"

The last symbol of a sequence says where the answer stands: one hop, at length 11 and any other up to 501. At
length 21 it says where the position of the answer stands: two hops. With --data DIR the examples are stored
in a folder. Test accuracy and wall time on two CPU cores, other jobs running:

    preset    what it is                                 dynamic:k         lstm            time
    relaxed   the default: some relaxed epochs, then     100.00 ± 0.00 %   76.24 ± 1.09 %  18 min, 5 seeds
              four rollouts per example; length 11
    two_hops  the default at length 21: digits come      98.37 ± 1.70 %    45.93 ± 0.46 %  23 min, 5 seeds
              with the number of their step
    far       the default beyond: 64 units; length 201   99.89 %           10.89 %         38 min
    rollouts  nothing relaxed; length 11                 100.00 %          not measured    28 min
    paper     Eq. 5 as printed; length 11, 5 epochs      35.35 %           not measured    not recorded
    released  as the authors' code does it               not measured
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.experiment import Experiment, decay_once_sampled
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.settings import Data, EvenAgent, Model, Settings, Training
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import setting

if TYPE_CHECKING:
    from dynskip_jax.data import NumberPredictionData
    from dynskip_jax.models import SequenceClassifier
    from dynskip_jax.tasks import Classification, Learner
    from dynskip_jax.training.schedule import Schedule

statistics = LazyModule("dynskip_jax.analysis.statistics")
plots = LazyModule("dynskip_jax.analysis.plots")
data_lib = LazyModule("dynskip_jax.data")
models_lib = LazyModule("dynskip_jax.models")
nnx = LazyModule("flax.nnx")
number_prediction = LazyModule("dynskip_jax.data.number_prediction")
tasks_lib = LazyModule("dynskip_jax.tasks")

TWO_HOPS = 21  # the length at which the task takes two hops

# Training of agents with sampled choices: a leave-one-out baseline over four rollouts of each example (Kool
# et al. 2019), and the exact entropy.
_ROLLOUTS = dict(rollouts=4, baseline="rollouts", entropy="exact")

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's model. Its agent is trained on four rollouts per example with a leave-one-out baseline (Kool
    # et al. 2019) and a small weight of the exact entropy. The plain LSTM needs many epochs; models that need
    # few stop early on dev.
    "rollouts": dict(**_ROLLOUTS, entropy_coef=0.02, epochs=25, patience=5),
    # Like `rollouts`, after a few relaxed epochs, in which the gradient shows which states would reduce the
    # loss. The weight of the entropy falls from positive to negative: the policy is first kept broad and then
    # made nearly deterministic, so that the switch to sampled choices changes little.
    "relaxed": dict(
        relaxation="soft",
        relaxed_epochs=3,
        relaxed_entropy_coef=0.02,
        relaxed_entropy_coef_final=-0.04,
        **_ROLLOUTS,
        entropy_coef=0.005,
        sampled_decay=0.5,
        epochs=25,
        patience=3,
    ),
    # Two hops take a chain of choices. The number of the step in the input lets the agent distinguish the
    # links of the chain. The entropy keeps the policy broad until rollouts train it; a policy that is made
    # deterministic before, as in `relaxed`, ends at 95 %. Half as many units as the paper's.
    "two_hops": dict(
        positions="input",
        agent_init="one_hot",
        agent_features=100,
        forget_bias=1.0,
        mix=1.0,
        features=100,
        learning_rate=0.002,
        sampled_decay=0.6,
        clip=1.0,
        relaxation="soft",
        relaxed_epochs=5,
        **_ROLLOUTS,
        entropy_coef=0.02,
        entropy_coef_final=0.0,
        epochs=10,
    ),
    # One hop over a long distance, K = 50 to 200: like `relaxed`, without an entropy bonus. The bonus is a
    # sum over all steps, of which only the last one matters. A policy that is made deterministic early keeps
    # wrong choices (80 % at length 51). The cost of relaxed epochs grows with K; the large learning rate
    # keeps their number small.
    "far": dict(
        features=64,
        batch_size=64,
        train_examples=50_000,
        learning_rate=0.003,
        relaxation="soft",
        relaxed_epochs=2,
        relaxed_entropy_coef=0.0,
        **_ROLLOUTS,
        entropy_coef=0.0,
        sampled_decay=0.5,
        epochs=4,
    ),
    # Gui et al. (2019), Section Number Prediction with Skips. The paper does not give batch size and epochs.
    "paper": {},
    # Like `paper`, with the settings of the authors' released code.
    "released": dict(
        mix=1.0,
        agent_features=10,
        agent_input="mean",
        agent_init="normal",
        first_step="carried",
        forget_bias=1.0,
        reward="correct",
        entropy_coef=0.0,
        evaluation_mode="sample",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberData(Data):
    """The examples."""

    length: int = shared.length(11)
    train_examples: int = shared.train_examples(100_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberModel(Model):
    """What the network is made of."""

    positions: Literal["none", "input"] = setting(
        "none", "input: add the number of the step to each symbol; none: the paper."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberAgent(EvenAgent):
    """Skips over time, their agents, and how these are trained."""

    agent_init: Literal["lecun", "normal", "one_hot"] = shared.agent_init("lecun")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberTraining(Training):
    """For how long and how fast."""

    epochs: int = shared.epochs(20)
    batch_size: int = shared.batch_size(128)
    sampled_decay: float = shared.sampled_decay(1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberSettings(Settings):
    """All settings of number prediction; batch size and epochs are not given in the paper."""

    data: NumberData = dataclasses.field(default_factory=NumberData)
    model: NumberModel = dataclasses.field(default_factory=NumberModel)
    agent: NumberAgent = dataclasses.field(default_factory=NumberAgent)
    training: NumberTraining = dataclasses.field(default_factory=NumberTraining)


# Accuracies of Gui et al. (2019), Table 5. The paper does not give the LSTM's dev accuracy at length 11.
PUBLISHED = {
    11: [
        ("paper: LSTM", {"test_accuracy": 0.704}),
        ("paper: attention", {"dev_accuracy": 0.713, "test_accuracy": 0.725}),
        ("paper: dynamic skip, λ=1, K=10", {"dev_accuracy": 0.796, "test_accuracy": 0.805}),
        ("paper: dynamic skip, λ=0.5, K=10", {"dev_accuracy": 0.904, "test_accuracy": 0.905}),
    ],
    21: [
        ("paper: LSTM", {"dev_accuracy": 0.262, "test_accuracy": 0.264}),
        ("paper: attention", {"dev_accuracy": 0.267, "test_accuracy": 0.269}),
        ("paper: dynamic skip, λ=1, K=10", {"dev_accuracy": 0.776, "test_accuracy": 0.777}),
        ("paper: dynamic skip, λ=0.5, K=10", {"dev_accuracy": 0.877, "test_accuracy": 0.885}),
    ],
}


class NumberPrediction(Experiment):
    """See `Experiment`."""

    name = "number_prediction"
    settings_type = NumberSettings
    presets = PRESETS
    default_model = "dynamic:10"
    commands = ("predict", "explain", "oracle")
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_exact_decisions": ("exact decisions", ".2%"),
    }
    curves = ("dev_accuracy",)

    @classmethod
    def default_preset(cls, given: Mapping[str, Any]) -> str:
        """Return the name of the preset that solves the task at the given length."""
        length = given.get("length", 11)
        if length == TWO_HOPS:
            return "two_hops"
        return "relaxed" if length < TWO_HOPS else "far"

    def load_data(self) -> NumberPredictionData:
        """See `Experiment`."""
        data = self.settings.data
        return data_lib.load_number_prediction(data.length, data=data.data, num_train=data.train_examples)

    def task(self, spec: ModelSpec, data: NumberPredictionData | None, vocabulary: None) -> Classification:
        """See `Experiment`."""
        s, length = self.settings, self.settings.data.length
        options = dict(spec.cell_options)
        if s.agent.agent_init == "one_hot":
            ones = 2 if s.model.positions == "input" else 1
            options["agent_input_kernel_init"] = nnx.initializers.normal(ones**-0.5)

        def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
            return models_lib.SequenceClassifier(
                number_prediction.num_symbols(length),
                s.model.features,
                10,
                (spec.skip,),
                **spec.recurrent_options,
                num_positions=length if s.model.positions == "input" else 0,
                dropout=s.model.dropout,
                dtype=spec.dtype,
                cell=options,
                rngs=rngs,
            )

        splits = (
            {} if data is None else {name: data_lib.Examples(x, y) for name, (x, y) in data.splits.items()}
        )
        return tasks_lib.Classification(splits, make_model, batch_size=s.training.batch_size)

    def schedule(self, spec: ModelSpec, rate: Any) -> Schedule:
        """See `Experiment`; models without relaxed epochs, such as baselines, keep a constant rate."""
        return decay_once_sampled(spec, rate, self.settings.training.sampled_decay)

    def warnings(self, spec: ModelSpec, learner: Learner) -> list[str]:
        """See `Experiment`; with one hop, also warn of an agent that cannot reach every answer."""
        lines, K, back = super().warnings(spec, learner), spec.reach, self.settings.data.length - 1
        if spec.skip.has_agent and self.settings.data.length != TWO_HOPS and back > K:
            lines.append(
                f"the answer may stand {back} steps back, and K = {K} reaches only those up to "
                f"{K} in one choice: {spec.name.partition(':')[0]}:{back} reaches all"
            )
        return lines

    def extra_metrics(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any
    ) -> dict[str, np.ndarray]:
        """See `Experiment`; how often the agent's choices are correct."""
        if not self._truth_is_known(spec):
            return {}
        chosen = _choices(learner, params, "test", keys)
        return {"test_exact_decisions": self._exact(chosen, learner.task.splits["test"].inputs).mean(axis=1)}

    def _truth_is_known(self, spec: ModelSpec) -> bool:
        """Return whether the agent's choices can be compared with the correct ones.

        One hop takes one choice at the last step, which must be able to reach every answer. Two hops take a
        chain of choices.
        """
        length = self.settings.data.length
        reaches_all = length == TWO_HOPS or spec.reach >= length - 1
        return spec.skip.is_stochastic and reaches_all

    def _exact(self, chosen: np.ndarray, digits: np.ndarray) -> np.ndarray:
        """Return whether the choices of each example are correct, (seeds, examples).

        With one hop, the last choice must reach the answer. With two hops, the chain of choices that leads to
        the last state must visit both positions that the digits point to.

        Args:
            chosen: k at each step, (seeds, examples, time).
            digits: Inputs, (examples, time).
        """
        hops = number_prediction.hops_of(digits)
        if hops.shape[1] == 1:
            return self.settings.data.length - 1 - chosen[:, :, -1] == hops[:, 0]
        rows = np.arange(len(hops))[:, None]
        return np.stack([statistics.visited(of_seed)[rows, hops].all(axis=1) for of_seed in chosen])

    def draw(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any, folder: Path, member: int
    ) -> None:
        """See `Experiment`; also draw the last choice or the chain of choices against the correct ones."""
        super().draw(spec, learner, params, keys, folder, member)
        if not self._truth_is_known(spec):
            return
        skip, length = spec.skip, self.settings.data.length
        chosen = _choices(learner, params, "dev", keys)[member]
        hops = number_prediction.hops_of(learner.task.splits["dev"].inputs)
        if hops.shape[1] == 1:
            plots.action_against_truth(
                chosen[:, -1] - 1,
                length - 1 - hops[:, 0] - 1,
                skip.max_skip,
                folder / "last_skip_against_truth.png",
                f"{spec.name}: the last choice against the right one",
                f"dev, greedy, seed {learner.seeds[member]}",
            )
            return
        visited = statistics.visited(chosen)
        for number, position in enumerate(hops.T, 1):
            plots.visited_positions(
                visited,
                position,
                folder / f"chain_visits_hop_{number}.png",
                f"{spec.name}: chain to the last state",
                note=f"hop {number} of {hops.shape[1]}; dev, greedy, seed {learner.seeds[member]}",
            )

    def published(
        self, models: Sequence[str], data: NumberPredictionData
    ) -> Sequence[tuple[str, dict[str, float]]]:
        """See `Experiment`; the paper's rows for this length."""
        return PUBLISHED.get(self.settings.data.length, [])

    @property
    def sample_text(self) -> str:
        """Random numbers, always the same ones, as many as in a training example."""
        length = self.settings.data.length
        return " ".join(
            map(str, np.random.default_rng(0).integers(number_prediction.num_symbols(length), size=length))
        )

    def encode(self, vocabulary: None, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; a text contains numbers separated by spaces, as many as a training example."""
        length = self.settings.data.length
        symbols, words = number_prediction.num_symbols(length), text.split()
        if len(words) != length or not all(w.isdecimal() and int(w) < symbols for w in words):
            raise UserError(f"a text has {length} numbers below {symbols}, separated by spaces; got {text!r}")
        return np.array([int(word) for word in words], np.int32), words


def _choices(learner: Learner, params: Any, split: str, keys: Any) -> Int[np.ndarray, "seeds examples time"]:
    """Return the k chosen greedily at each step of each example of a split."""
    read = learner.choices(params, split, keys, layer=0)
    return np.concatenate([chosen[:, batch.mask] for batch, chosen in read], axis=1)


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
