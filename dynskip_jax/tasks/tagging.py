"""Train taggers, with a CRF or a softmax at each word, and score entities or words."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch, Examples
from dynskip_jax.data.tag_schemes import Scheme, allowed_transitions
from dynskip_jax.models import Tagger
from dynskip_jax.tasks.label_score import score_labels
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput, MakeModel


class OfTags(NamedTuple):
    """Log-probabilities of the tags, in nats, and the predicted tags."""

    # Of the true tags: of the whole sequence with a CRF, or of each tag with a softmax; None
    # without targets.
    target: Float[Array, "rows *time"] | None
    marginals: Float[Array, "rows time tags"]  # of each tag at each word
    best: Int[Array, "rows time"] | None  # predicted tags; None if training does not decode


class Tagging(ExampleTask):
    """A task with one tag for each word; it trains a `Tagger`.

    With a CRF, the loss of a sentence is -log p of its tag sequence, and the most probable sequence
    is predicted (Viterbi). With a softmax, the loss is the sum of -log p over words, and the most
    probable tag of each word is predicted.

    Args:
        splits: See `ExampleTask`; inputs are `TokenIds`.
        scheme: Scheme of tags that encode entities. Entities are then scored (`f1`, counted as in
            conlleval), and averaged predictions of a CRF obey the scheme. None: words are scored
            (`accuracy`).
        gold: True tags of each sentence of each split, for the scores.
        rewards_words: Whether agents are rewarded at each word with the (marginal, for a CRF)
            log-probability of its true tag, instead of once with that of the whole sequence. In the
            top layer, the return of an action then leaves out its effect, through the CRF, on words
            that the layer has read before.
        decode_in_training: Whether training predicts tags. If False, training of a CRF skips
            Viterbi decoding, and cannot reward agents for `correct` predictions.
        unknown_tag: Index of the tag that stands for tags missing from train; it is never
            predicted.
    """

    def __init__(
        self,
        splits: Mapping[str, Examples],
        make_model: MakeModel,
        *,
        tags: Sequence[str],
        scheme: Scheme | None = None,
        gold: Mapping[str, Sequence[Sequence[str]]] | None = None,
        rewards_words: bool = False,
        decode_in_training: bool = True,
        unknown_tag: int | None = None,
        **options: Any,
    ):
        super().__init__(splits, make_model, **{"evaluation_rows": 200} | options)
        self.tags = tuple(tags)
        self.scheme = scheme
        self.gold = gold or {}
        self.is_of_steps = rewards_words
        self.unknown_tag = unknown_tag
        self.score = "accuracy" if scheme is None else "f1"
        self.decode_in_training = decode_in_training
        # F1 is not counted while training.
        self.primary_metric = "accuracy" if decode_in_training else "nll"

    @override
    def forward(
        self, model: Tagger, batch: Batch, carry: Any, *, shared_key: Any, **how: Any
    ) -> Forward:
        output = model(batch.inputs, seq_lengths=batch.seq_lengths, **how)
        crf = output.crf
        emissions = output.emissions
        targets = batch.targets
        lengths = batch.seq_lengths
        best = target = None
        decodes = self.decode_in_training or how["deterministic"]
        if crf is None:
            marginals = jax.nn.log_softmax(emissions)
            if decodes:
                best = _best(self._predictable(marginals))
            if targets is not None:
                target = _of_each(marginals, targets)
        else:
            marginals = F.crf_marginals(crf, emissions, lengths)
            if decodes:
                best = F.crf_decode(crf, self._predictable(emissions), lengths)
            if targets is not None:
                target = F.crf_log_likelihood(crf, emissions, targets, lengths)
        return Forward(
            OfTags(target, marginals, best), output.decisions, observations=output.observations
        )

    def _predictable(
        self, scores: Float[Array, "rows time tags"]
    ) -> Float[Array, "rows time tags"]:
        """Return the scores, with the tag `unknown_tag` made impossible."""
        if self.unknown_tag is None:
            return scores
        return scores.at[..., self.unknown_tag].set(F.FORBIDDEN)

    @override
    def average(self, log_probs: OfTags, batch: Batch, samples: int) -> OfTags:
        """Average probabilities; the prediction has the largest expected number of right tags.

        An average of CRFs is no CRF, so Viterbi decoding does not apply. The prediction obeys the
        scheme.
        """
        means = super().average(log_probs._replace(best=()), batch, samples)
        marginals = self._predictable(means.marginals)
        if means.target.ndim > 1:
            return means._replace(best=_best(marginals))
        count = len(self.tags)
        rules = F.CRFParams(jnp.zeros((count, count)), jnp.zeros(count), jnp.zeros(count))
        if self.scheme is not None:
            rules = F.crf_constrain(rules, *allowed_transitions(self.tags, self.scheme))
        expected_right = jnp.where(marginals > F.FORBIDDEN, jnp.exp(marginals), F.FORBIDDEN)
        return means._replace(best=F.crf_decode(rules, expected_right, batch.seq_lengths))

    @override
    def compute_loss(self, log_probs: OfTags, batch: Batch) -> LossOutput:
        """Return the loss; also count sentences without a wrong tag, if tags are decoded."""
        inside = F.length_mask(batch.seq_lengths, batch.targets.shape[1])
        target = log_probs.target
        counted = {"nll": -target}
        if log_probs.best is not None:
            right = (log_probs.best == batch.targets) & inside
            all_right = (right | ~inside).all(axis=1)
            right = right.astype(target.dtype)
            all_right = all_right.astype(target.dtype)
            counted = {"accuracy": right, "nll": -target, "sentence_accuracy": all_right}
        words = jnp.where(inside, _of_each(log_probs.marginals, batch.targets), 0)
        if self.is_of_steps:
            return LossOutput(-target, counted.get("accuracy"), counted, rewarded=words)
        sentence = target if target.ndim == 1 else words.sum(axis=1)
        return LossOutput(-target, counted.get("sentence_accuracy"), counted, rewarded=sentence)

    @override
    def predict(self, log_probs: OfTags, batch: Batch) -> Int[Array, "rows time"]:
        return log_probs.best

    @override
    def host_metrics(self, split: str, predictions: Sequence[Any]) -> dict[str, float]:
        """Return F1, precision and recall of entities, in [0, 1]; nothing for other tags."""
        if self.scheme is None:
            return {}
        predicted = [[self.tags[tag] for tag in tags] for tags in predictions]
        whole = score_labels(self.gold[split], predicted, has_entities=True).overall
        return {"f1": whole.f1, "precision": whole.precision, "recall": whole.recall}


def _of_each(
    log_probs: Float[Array, "rows time tags"], tags: Int[Array, "rows time"]
) -> Float[Array, "rows time"]:
    return jnp.take_along_axis(log_probs, tags[..., None], axis=-1)[..., 0]


def _best(scores: Float[Array, "rows time tags"]) -> Int[Array, "rows time"]:
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)
