"""Tagging: a tag for each word, by a CRF over the sentence or a softmax; score of entities or of words."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.data.batching import Batch
from dynskip_jax.data.examples import Examples
from dynskip_jax.data.tag_schemes import Scheme, allowed_transitions
from dynskip_jax.errors import UserError
from dynskip_jax.models import Tagger
from dynskip_jax.tasks.entity_score import EntityCounts, EntityScore, entity_score, tag_score
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput, MakeModel

RewardOf = Literal["sentence", "words"]
_MOST_LABELS = 50  # tags with metrics of their own


class OfTags(NamedTuple):
    """What is thought of each sentence's tags; log-probabilities in nats.

    Attributes:
        target: of the true tags, (rows,) of the whole sequence by a CRF, (rows, time) of each by a softmax; 0
            where the truth is not known.
        marginals: of each tag at each word, whatever the others are, (rows, time, tags).
        best: the tags that are predicted, (rows, time); None where training does not decode.
    """

    target: Float[Array, "rows *time"]
    marginals: Float[Array, "rows time tags"]
    best: Int[Array, "rows time"] | None


class Tagging(ExampleTask):
    """A tag for each word; trains a `Tagger` (Gui et al. 2019, NER; Wu et al. 2016).

    With a CRF the loss of a sentence is -log p of its tag sequence, and the likeliest sequence is predicted
    (Viterbi); with a softmax it is the sum over words, and each word has its likeliest tag.

    Several samples of a sentence, as its agents choose anew, are averaged as probabilities: of the true tags,
    and of each tag at each word (the marginals). From a CRF that sequence is then predicted which, among
    those that the scheme allows, has the most right tags in expectation: an average of CRFs is no CRF, and
    has no Viterbi sequence.

    Args:
        splits: `train`, `dev` and `test`; none where a model is only used. Inputs are `TokenIds`.
        make_model: see `Task`.
        tags: the tag of each index.
        scheme: that of tags which spell out entities: these are scored (`f1`, as conlleval counts), and no
            CRF predicts what breaks its rules. None: words are scored (`accuracy`).
        gold: the true tags of each sentence of a split, for `host_metrics` and `label_metrics`.
        reward_of: agents are rewarded for the log-probability of the `sentence`'s tag sequence, or at each of
            the `words` for that of its true tag, with a CRF the marginal one. What an action moves at words
            that its layer has read before, through the CRF or layers above, is then left out of its return.
        decode_in_training: whether training predicts tags and counts the right ones. If not, training of a
            CRF searches for no best sequence, reports the loss, and cannot reward agents for `correct`
            predictions.
        unknown_tag: the index of a tag that stands for all that train lacks, and is never predicted.
        batch_size: sentences of a training step.
        evaluation_rows: sentences of an evaluation step.
    """

    def __init__(
        self,
        splits: Mapping[str, Examples],
        make_model: MakeModel,
        *,
        tags: Sequence[str],
        scheme: Scheme | None = None,
        gold: Mapping[str, Sequence[Sequence[str]]] | None = None,
        reward_of: RewardOf = "sentence",
        decode_in_training: bool = True,
        unknown_tag: int | None = None,
        batch_size: int = 1,
        evaluation_rows: int = 200,
    ):
        super().__init__(splits, make_model, batch_size=batch_size, evaluation_rows=evaluation_rows)
        self.tags, self.scheme, self.gold = tuple(tags), scheme, gold or {}
        if reward_of not in ("sentence", "words"):
            raise UserError(f"unknown reward_of {reward_of!r}: choose sentence or words")
        self.reward_of, self.unknown_tag = reward_of, unknown_tag
        self.is_of_steps = reward_of == "words"
        self.has_host_metrics = scheme is not None
        self.score = "accuracy" if scheme is None else "f1"
        self.decode_in_training = decode_in_training
        self.primary_metric = "accuracy" if decode_in_training else "nll"  # F1 is not counted while training

    def forward(self, model: Tagger, batch: Batch, carry: Any, *, shared_key: Any, **how: Any) -> Forward:
        """See `Task`."""
        output = model(batch.inputs, seq_lengths=batch.seq_lengths, **how)
        decode = self.decode_in_training or how["deterministic"]
        of_tags = self._of_softmax if output.crf is None else self._of_crf
        log_probs = of_tags(output.emissions, output.crf, batch.targets, batch.seq_lengths, decode)
        return Forward(log_probs, output.decisions, observations=output.observations)

    def _of_crf(self, emissions, crf: F.CRFParams, targets, seq_lengths, decode: bool) -> OfTags:
        known = targets is not None
        return OfTags(
            F.crf_log_likelihood(crf, emissions, targets, seq_lengths)
            if known
            else jnp.zeros(emissions.shape[0]),
            F.crf_marginals(crf, emissions, seq_lengths),
            F.crf_decode(crf, self._predictable(emissions), seq_lengths)[0] if decode else None,
        )

    def _of_softmax(self, emissions, crf: None, targets, seq_lengths, decode: bool) -> OfTags:
        marginals = jax.nn.log_softmax(emissions)
        target = jnp.zeros(emissions.shape[:2]) if targets is None else _of_each(marginals, targets)
        return OfTags(target, marginals, _best(self._predictable(marginals)) if decode else None)

    def _predictable(self, scores: Float[Array, "rows time tags"]) -> Float[Array, "rows time tags"]:
        """The scores, none of which leads to the tag that is never predicted."""
        return scores if self.unknown_tag is None else scores.at[..., self.unknown_tag].set(F.FORBIDDEN)

    def average(self, log_probs: OfTags, batch: Batch, samples: int) -> OfTags:
        """See `Task`."""
        means = super().average(log_probs._replace(best=()), batch, samples)
        marginals = self._predictable(means.marginals)
        if means.target.ndim > 1:
            return means._replace(best=_best(marginals))
        count = len(self.tags)
        rules = F.CRFParams(jnp.zeros((count, count)), jnp.zeros(count), jnp.zeros(count))
        if self.scheme is not None:
            rules = F.crf_constrain(rules, *allowed_transitions(self.tags, self.scheme))
        expected_right = jnp.where(marginals > F.FORBIDDEN, jnp.exp(marginals), F.FORBIDDEN)
        return means._replace(best=F.crf_decode(rules, expected_right, batch.seq_lengths)[0])

    def compute_loss(self, log_probs: OfTags, batch: Batch) -> LossOutput:
        """See `Task`; also the share of sentences without a wrong tag."""
        inside = F.length_mask(batch.seq_lengths, batch.targets.shape[1])
        target = log_probs.target
        counted = {"nll": -target}
        if log_probs.best is not None:
            right = (log_probs.best == batch.targets) & inside
            all_right = (right | ~inside).all(axis=1)
            right, all_right = right.astype(target.dtype), all_right.astype(target.dtype)
            counted = {"accuracy": right, "nll": -target, "sentence_accuracy": all_right}
        words = jnp.where(inside, _of_each(log_probs.marginals, batch.targets), 0)
        if self.reward_of == "words":
            return LossOutput(-target, counted.get("accuracy"), counted, rewarded=words)
        sentence = target if target.ndim == 1 else words.sum(axis=1)
        return LossOutput(-target, counted.get("sentence_accuracy"), counted, rewarded=sentence)

    def predict(self, log_probs: OfTags, batch: Batch) -> Int[Array, "rows time"]:
        """See `Task`."""
        return log_probs.best

    def host_metrics(self, split: str, predictions: Sequence[Any]) -> dict[str, float]:
        """F1, precision and recall of entities, from 0 to 1, and the F1 of each type; see `Task`."""
        score = self.score_labels(split, predictions)
        whole = score.overall
        metrics = {"f1": whole.f1, "precision": whole.precision, "recall": whole.recall}
        for kind in self._labels:
            metrics[f"f1_{kind}"] = score.by_type.get(kind, _NOTHING).f1
        return metrics

    def predicted_tags(self, predictions: Sequence[Any]) -> list[list[str]]:
        """Return the tags of predicted ids, for each sentence."""
        return [[self.tags[tag] for tag in tags] for tags in predictions]

    def score_labels(self, split: str, predictions: Sequence[Any]) -> EntityScore:
        """Return the score of each type of entity, or of each tag where tags spell out no entities."""
        score = tag_score if self.scheme is None else entity_score
        return score(self.gold[split], self.predicted_tags(predictions))

    def label_metrics(self, split: str, predictions: Sequence[Any]) -> dict[str, float]:
        """Return precision, recall, F1 and support of each type of entity, or of the most frequent tags."""
        score, metrics = self.score_labels(split, predictions), {}
        for label in self._labels:
            counts = score.by_type.get(label, _NOTHING)
            for name in ("precision", "recall", "f1"):
                metrics[f"{name}_{label}"] = getattr(counts, name)
            metrics[f"support_{label}"] = float(counts.gold)
        return metrics

    @functools.cached_property
    def _labels(self) -> list[str]:
        """Types of entities, or the most frequent tags, in sorted order."""
        if self.scheme is not None:
            return sorted({tag.partition("-")[2] for tag in self.tags} - {""})
        counts = Counter(tag for split in self.gold.values() for tags in split for tag in tags)
        return sorted(tag for tag, _ in counts.most_common(_MOST_LABELS))


_NOTHING = EntityCounts(0, 0, 0)


def _of_each(
    log_probs: Float[Array, "rows time tags"], tags: Int[Array, "rows time"]
) -> Float[Array, "rows time"]:
    return jnp.take_along_axis(log_probs, tags[..., None], axis=-1)[..., 0]


def _best(scores: Float[Array, "rows time tags"]) -> Int[Array, "rows time"]:
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)
