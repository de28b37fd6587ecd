"""Number prediction: its data, model, tables and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int

from dynskip_jax.analysis import chains, plots
from dynskip_jax.data import Examples, NumberPredictionData, load_number_prediction
from dynskip_jax.data.number_prediction import hops_of, num_symbols
from dynskip_jax.errors import UserError
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, Learner
from dynskip_jax.training.schedule import Schedule
from experiments.experiment import Experiment
from experiments.number_prediction import COMMAND, TWO_HOPS

# Accuracies in percent of Gui et al. (2019), Table 5; the LSTM's dev accuracy at length 11 is not given.
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

    command = COMMAND
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_exact_decisions": ("exact decisions", ".2%"),
    }
    curves = ("dev_accuracy",)

    def load_data(self) -> NumberPredictionData:
        """See `Experiment`."""
        data = self.settings.data
        return load_number_prediction(data.length, data=data.data, num_train=data.train_examples)

    def task(self, model: str, data: NumberPredictionData | None, vocabulary: None) -> Classification:
        """See `Experiment`."""
        s, length = self.settings, self.settings.data.length
        options = self.cell_options()
        if s.agent.agent_init == "one_hot":
            ones = 2 if s.model.positions == "input" else 1
            options["agent_input_kernel_init"] = nnx.initializers.normal(ones**-0.5)

        def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
            return SequenceClassifier(
                num_symbols(length),
                s.model.features,
                10,
                (self.skip(model),),
                **self.recurrent_options(),
                num_positions=length if s.model.positions == "input" else 0,
                dropout=s.model.dropout,
                dtype=self.dtype,
                **options,
                rngs=rngs,
            )

        splits = {} if data is None else {name: Examples(x, y) for name, (x, y) in data.splits.items()}
        return Classification(splits, make_model, batch_size=s.training.batch_size)

    def schedule(self, model: str, rate: Any) -> Schedule:
        """See `Experiment`; what takes no relaxed epochs, the baselines, keeps its learning rate."""
        return self.decayed_once_sampled(model, rate, self.settings.training.sampled_decay)

    def warnings(self, model: str, learner: Learner) -> list[str]:
        """See `Experiment`; with one hop, an agent that cannot reach every answer."""
        lines, K, back = super().warnings(model, learner), self.reach(model), self.settings.data.length - 1
        if self.skip(model).has_agent and self.settings.data.length != TWO_HOPS and back > K:
            lines.append(
                f"the answer may stand {back} steps back, and K = {K} reaches only those up to "
                f"{K} in one choice: {model.partition(':')[0]}:{back} reaches all"
            )
        return lines

    def more_metrics(self, model: str, learner: Learner, params: Any, keys: Any) -> dict[str, np.ndarray]:
        """How often the agent's choices are the right ones."""
        if not self._truth_is_known(model):
            return {}
        chosen = _choices(learner, params, "test", keys)
        return {"test_exact_decisions": self._exact(chosen, learner.task.splits["test"].inputs).mean(axis=1)}

    def _truth_is_known(self, model: str) -> bool:
        """One hop takes one choice, the last one, if it reaches so far; two hops take a chain of choices."""
        length = self.settings.data.length
        reaches_all = length == TWO_HOPS or self.reach(model) >= length - 1
        return self.skip(model).is_stochastic and reaches_all

    def _exact(self, chosen: np.ndarray, digits: np.ndarray) -> np.ndarray:
        """Where the choices, (seeds, examples, time), are right, (seeds, examples).

        With one hop the last choice is to reach the answer; with two, the chain of choices that leads to the
        last state is to visit both positions that the digits point to.
        """
        hops = hops_of(digits)
        if hops.shape[1] == 1:
            return self.settings.data.length - 1 - chosen[:, :, -1] == hops[:, 0]
        rows = np.arange(len(hops))[:, None]
        return np.stack([chains.visited(of_seed)[rows, hops].all(axis=1) for of_seed in chosen])

    def draw(self, model: str, learner: Learner, params: Any, keys: Any, folder: Path, member: int) -> None:
        """Where the agent reaches at each position, and at the end against the truth."""
        super().draw(model, learner, params, keys, folder, member)
        if not self._truth_is_known(model):
            return
        skip, length = self.skip(model), self.settings.data.length
        chosen = _choices(learner, params, "dev", keys)[member]
        hops = hops_of(learner.task.splits["dev"].inputs)
        if hops.shape[1] == 1:
            plots.action_against_truth(
                chosen[:, -1] - 1,
                length - 1 - hops[:, 0] - 1,
                skip.max_skip,
                folder / "last_skip_against_truth.png",
                f"{model}: the last choice against the right one",
            )
            return
        visited = chains.visited(chosen)
        for number, position in enumerate(hops.T, 1):
            plots.visited_positions(
                visited,
                position,
                folder / f"chain_visits_hop_{number}.png",
                f"{model}: chain to the last state",
                note=f"hop {number} of {hops.shape[1]}; dev, greedy, seed {learner.seeds[member]}",
            )

    def published(
        self, models: Sequence[str], data: NumberPredictionData
    ) -> Sequence[tuple[str, dict[str, float]]]:
        """The paper's rows for this length."""
        return PUBLISHED.get(self.settings.data.length, [])

    @property
    def sample_text(self) -> str:
        """Numbers of the length trained on, always the same ones."""
        length = self.settings.data.length
        return " ".join(map(str, np.random.default_rng(0).integers(num_symbols(length), size=length)))

    def encode(self, vocabulary: None, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; digits, and at length 21 and beyond numbers, separated by spaces."""
        length = self.settings.data.length
        symbols, words = num_symbols(length), text.split()
        if len(words) != length or not all(w.isdecimal() and int(w) < symbols for w in words):
            raise UserError(f"a text has {length} numbers below {symbols}, separated by spaces; got {text!r}")
        return np.array([int(word) for word in words], np.int32), words


def _choices(learner: Learner, params: Any, split: str, keys: Any) -> Int[np.ndarray, "seeds examples time"]:
    """k at each step of each example of a split, chosen greedily."""
    read = learner.choices(params, split, keys, layer=0)
    return np.concatenate([chosen[:, batch.mask] for batch, chosen in read], axis=1)
