"""The source code, and how often the model finds its next token."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.batches import Batch
from dynskip_jax.data.source_code import code_tokens, read_code
from dynskip_jax.experiments.language_task import TextModelling
from dynskip_jax.models.language_model import LanguageModel, LanguageModelOutput
from dynskip_jax.tasks.language import OfTargets
from dynskip_jax.tasks.task import Forward, LossOutput


class CodeModelling(TextModelling):
    """Predict the next token of source code, and rank the true one in evaluation.

    Metrics are the top-1 accuracy, the top-5 accuracy (`top5`) and the mean reciprocal rank
    (`mrr`): of all tokens, of names, and of names that are numbered because train hardly has them
    (`new_names`). In evaluation, log-probabilities are a pair: those of `LanguageModelling`, and
    log(1 / rank).
    """

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the source code."""
        corpus, lines = read_code(settings.data.data, settings.data.max_tokens)
        about = (corpus.name, corpus.sizes, corpus.fingerprint, corpus.source)
        return Dataset(*about, content=corpus, vocabulary=corpus.vocabulary, lines=lines)

    @override
    def read(
        self, model: LanguageModel, batch: Batch, carry: Any, **how: Any
    ) -> tuple[Forward, LanguageModelOutput]:
        forward, output = super().read(model, batch, carry, **how)
        # Ranks need the whole vocabulary at each step, which training does not pay for.
        if how["deterministic"]:
            log_reciprocal = -jnp.log(ranks(output.logits, batch.targets))
            forward = forward._replace(log_probs=(forward.log_probs, log_reciprocal))
        return forward, output

    @override
    def average(self, log_probs: tuple[OfTargets, Array], batch: Batch, samples: int) -> OfTargets:
        """Return the average without ranks: those of the mean probabilities are not known."""
        of_targets, _ = log_probs
        return super().average(of_targets, batch, samples)

    @override
    def compute_loss(self, log_probs: Any, batch: Batch) -> LossOutput:
        if isinstance(log_probs, OfTargets):  # training does not rank, and averages have no rank
            return super().compute_loss(log_probs, batch)
        of_targets, log_reciprocal = log_probs
        scored = super().compute_loss(of_targets, batch)
        reciprocal = jnp.exp(log_reciprocal)
        scores = {"accuracy": reciprocal > 1 / 1.5, "top5": reciprocal > 1 / 5.5, "mrr": reciprocal}
        counted = {**scored.counted, **scores}
        # Means are over all tokens; `metrics` divides those of a group by its share.
        for group, is_of_group in self.corpus.vocabulary.groups(batch.targets).items():
            counted[f"{group}_share"] = is_of_group
            counted |= {f"{group}_{name}": is_of_group * value for name, value in scores.items()}
        return scored._replace(counted=counted)

    @override
    def metrics(self, means: Mapping[str, np.ndarray], split: str) -> dict[str, np.ndarray]:
        found = super().metrics(means, split)
        for group in ("names", "new_names"):
            share = found.pop(f"{group}_share", None)
            for name in ("accuracy", "top5", "mrr") if share is not None else ():
                mean = found.pop(f"{group}_{name}")
                found |= {f"{group}_{name}": mean / share} if np.all(share) else {}
        return found

    @override
    def encode(self, text: str) -> tuple[np.ndarray, list[str]]:
        """Return the tokens of a text in Python, which begin with `<file>`."""
        tokens = list(code_tokens("-.py", text))
        start = self.vocabulary.start
        ids = self.vocabulary.encode([start, *self.vocabulary.number(tokens)])
        return ids, [start, *(token.text for token in tokens)]


def ranks(
    logits: Float[Array, "*dims vocabulary"], targets: Int[Array, "*dims"]
) -> Float[Array, "*dims"]:
    """Return the rank of each target among all tokens; 1 is the most probable."""
    of_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)
    return 1.0 + (logits > of_target).sum(axis=-1)
