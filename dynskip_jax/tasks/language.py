"""Train language models on streams of text, and measure perplexity."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch, bptt_lengths, num_segments, segments
from dynskip_jax.data.language import LanguageCorpus
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.models import LanguageModel, LanguageModelOutput
from dynskip_jax.tasks.task import Forward, LossOutput, MakeModel, Task

_STREAMS = 10  # into which dev and test are cut by default
_LONG = 400  # words (rows times steps) in an evaluation segment, at least


class OfTargets(NamedTuple):
    """Log-probability of the true next word, in nats, and 1 where it is the most probable one."""

    target: Float[Array, "rows time"]
    correct: Float[Array, "rows time"] | None  # None for averaged samples, of which it is unknown


class LanguageModelling(Task):
    """A task that predicts the next word of each stream; it trains a `LanguageModel`.

    The loss is the cross-entropy, summed over a segment and averaged over streams. At this scale
    Zaremba et al. (2014) clip gradients at 5.

    Args:
        corpus: Text of all splits; None if a model is only used.
        batch_size: Number of streams in a training batch.
        random_lengths: Whether segments have random lengths around `num_steps` (see
            `bptt_lengths`).
        restart_buffer: Whether all but the newest state are forgotten at the start of each training
            segment, as in the released code. Evaluation forgets them once `num_steps` words have
            been read since.
        activation_coefs: See `Classification`.
    """

    score = "perplexity"
    higher_is_better = False
    unit = "tokens"
    is_of_steps = True
    shared_batches = True  # streams are cut once, so every seed reads the same batches

    def __init__(
        self,
        corpus: LanguageCorpus | None,
        make_model: MakeModel,
        *,
        batch_size: int = 1,
        num_steps: int = 35,
        random_lengths: bool = False,
        restart_buffer: bool = False,
        activation_coefs: tuple[float, float] = (0.0, 0.0),
    ):
        super().__init__(make_model)
        self.corpus = corpus
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.random_lengths = random_lengths
        self.restart_buffer = restart_buffer
        self.activation_coefs = activation_coefs
        self.num_batches = 0 if corpus is None else len(self._lengths_of(0))

    def _lengths_of(self, epoch: int) -> list[int]:
        """Return the segments' lengths in an epoch; random ones are the same in another order."""
        size = len(self.corpus.train)
        if not self.random_lengths:
            return [self.num_steps] * num_segments(size, self.batch_size, self.num_steps)
        row_length = num_segments(size, self.batch_size, 1)
        lengths = bptt_lengths(row_length, self.num_steps, np.random.default_rng(0))
        if epoch > 0:
            lengths = np.random.default_rng([0, epoch]).permutation(lengths).tolist()
        return lengths

    @override
    def train_batches(self, epoch: int, seeds: Sequence[int]) -> Iterable[Batch]:
        how = dict(drop_tail=True, first_token=self.end_of_line)
        return segments(self.corpus.train, self.batch_size, self._lengths_of(epoch), **how)

    @override
    def train_batch_sizes(self, epoch: int) -> Sequence[int]:
        return [self.batch_size * length for length in self._lengths_of(epoch)]

    @override
    def evaluation_batches(self, split: str, rows: int | None, samples: int) -> Iterable[Batch]:
        rows = rows or _STREAMS
        num_steps = self.num_steps
        if not self.restart_buffer:
            # With few streams, longer segments give the same result with fewer calls.
            num_steps = max(num_steps, _LONG // (rows * samples))
        return self.windows(split, rows, num_steps)

    def windows(self, split: str, rows: int, steps: int) -> Iterable[Batch]:
        """Return the segments of a split in `rows` streams, each token once."""
        return segments(
            self.tokens(split), rows, steps, drop_tail=False, first_token=self.end_of_line
        )

    @property
    def end_of_line(self) -> int:
        """Id of the token, usually `<eos>`, that is read before the first one of each split."""
        return self.corpus.vocabulary.index[self.corpus.vocabulary.start]

    def tokens(self, split: str) -> Int[np.ndarray, " tokens"]:
        """Return the token ids of a split: `train`, `dev` or `test`."""
        return self.corpus.splits[split]

    @override
    def initial_carry(self, model: LanguageModel, rows: int, key: Key[Array, ""]) -> Any:
        return model.initialize_carry(rows, key)

    @override
    def forward(self, model: LanguageModel, batch: Batch, carry: Any, **how: Any) -> Forward:
        forward, output = self.read(model, batch, carry, **how)
        # Both penalties are means over tokens, but the loss is a sum over a segment.
        alpha, beta = self.activation_coefs
        penalty = F.activation_regularisation(output.dropped_states, alpha)
        penalty = penalty + F.temporal_activation_regularisation(output.states, beta)
        return forward._replace(penalties=((batch.inputs.shape[1] * penalty, 1.0),))

    def read(
        self, model: LanguageModel, batch: Batch, carry: Any, **how: Any
    ) -> tuple[Forward, LanguageModelOutput]:
        """Return the forward pass without penalties, and the model's output."""
        if self.restart_buffer:
            restarted = model.restart_carry(carry)
            # Every training segment restarts, whatever its length.
            due = (model.steps_read(carry) >= self.num_steps) | (not how["deterministic"])
            carry = where_each(due, restarted, carry)
        carry, output = model(batch.inputs, initial_carry=carry, return_carry=True, **how)
        log_likelihood = output.log_likelihood(batch.targets)
        correct = output.logits.argmax(-1) == batch.targets
        of_targets = OfTargets(log_likelihood, correct.astype(log_likelihood.dtype))
        return Forward(
            of_targets, output.decisions, carry, observations=output.observations
        ), output

    @override
    def average(self, log_probs: OfTargets, batch: Batch, samples: int) -> OfTargets:
        return super().average(log_probs._replace(correct=None), batch, samples)

    @override
    def compute_loss(self, log_probs: OfTargets, batch: Batch) -> LossOutput:
        nll = -log_probs.target
        return LossOutput(nll, log_probs.correct, {"nll": nll})

    @override
    def predict(self, log_probs: Any, batch: Batch) -> tuple[()]:
        """Return nothing, since `log_probs` does not contain the best word's id."""
        return ()

    @override
    def metrics(self, means: Mapping[str, np.ndarray], split: str) -> dict[str, np.ndarray]:
        """Return perplexities in place of losses."""
        losses = {"nll": "perplexity", "cached_nll": "perplexity_cached"}
        metrics = {new: np.exp(means[name]) for name, new in losses.items() if name in means}
        metrics |= {name: mean for name, mean in means.items() if name not in losses}
        return metrics


class CachedLanguageModelling(LanguageModelling):
    """The task of a language model that also evaluates `perplexity_cached`, (θ, λ).

    It compares neural caches of `size` words (Grave et al. 2017): each `flatness` θ with each
    `weight` λ. Its log-probabilities are a pair: those without a cache, and those of the targets
    with each cache, (rows, time, θ, λ). Each sample of a stream has its own cache, which is emptied
    where the model restarts.
    """

    def __init__(
        self,
        task: LanguageModelling,
        *,
        size: int,
        flatness: Sequence[float],
        weight: Sequence[float],
    ):
        vars(self).update(vars(task))  # the same text and models
        self.size = size
        self.flatness = jnp.asarray(flatness)
        self.weight = jnp.asarray(weight)

    @override
    def initial_carry(self, model: LanguageModel, rows: int, key: Key[Array, ""]) -> Any:
        features = model.stack.cells[-1].hidden_features
        return super().initial_carry(model, rows, key), F.empty_cache(rows, self.size, features)

    @override
    def forward(self, model: LanguageModel, batch: Batch, carry: Any, **how: Any) -> Forward:
        carry, past = carry
        read, output = self.read(model, batch, carry, **how)
        begins = None
        if model.restart_token is not None:
            begins = batch.inputs == model.restart_token

        def cached(flatness, weight):
            how = dict(flatness=flatness, weight=weight, begins=begins)
            return F.cached_log_likelihood(
                past, output.states, batch.targets, read.log_probs.target, **how
            )

        # The updated cache is the same for all θ and λ.
        grid = jax.vmap(jax.vmap(cached, (None, 0), (None, 2)), (0, None), (None, 2))
        past, with_caches = grid(self.flatness, self.weight)
        return read._replace(log_probs=(read.log_probs, with_caches), carry=(read.carry, past))

    @override
    def average(self, log_probs: tuple[OfTargets, Array], batch: Batch, samples: int) -> Any:
        own, cached = log_probs
        return Task.average(self, (own._replace(correct=None), cached), batch, samples)

    @override
    def compute_loss(self, log_probs: tuple[OfTargets, Array], batch: Batch) -> LossOutput:
        scored = super().compute_loss(log_probs[0], batch)
        return scored._replace(counted={**scored.counted, "cached_nll": -log_probs[1]})
