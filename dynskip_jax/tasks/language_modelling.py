"""Language modelling as a task for the loop: truncated BPTT over streams, perplexity."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.data import LanguageCorpus, Segment, num_segments, segments
from dynskip_jax.data.bptt import bptt_lengths, segments_of_lengths
from dynskip_jax.data.characters import character_table
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.models import LanguageModel, LanguageModelDropout, LanguageModelOutput
from dynskip_jax.nn import CharEmbedding
from dynskip_jax.training.objective import AgentObjective, AgentStage
from dynskip_jax.training.stage import Sweep


@dataclasses.dataclass(frozen=True)
class LanguageModellingSettings:
    """The part of a configuration that this task needs.

    Attributes:
        skips: the time skip of each layer, bottom first.
        transition: of every layer.
        depth_skip: what each layer receives from further below; None for nothing.
        features: size of every layer's state (and of the embedding), or one size for each layer.
        batch_size: streams read side by side in training.
        num_steps: steps of truncated back-propagation.
        dropout: what is dropped in training; a number: `LanguageModelDropout.everywhere`.
        init_scale: weights are drawn from U(-init_scale, init_scale).
        cell_options: options of `SkipCell` for each layer.
        objective: how agents are rewarded. With several rollouts each stream is read as often, side by side.
        character_options: options of `CharEmbedding`, which then takes the place of a table of words.
        embedding_features: size of the embedding, where it is not that of the first layer.
        tied: the softmax's weights are the embedding's.
        activation_coef: α of AR (Merity et al. 2018, Section 4.5).
        temporal_coef: β of TAR.
        random_lengths: segments have random lengths around `num_steps` (see `bptt_lengths`).
        epochs: how long training goes on, for what is scheduled over it.
        num_seeds: how many models are trained together.
        sweep: in what else than their seeds they differ.
        dtype: in which matrices are multiplied, by default float32; parameters and all else are float32.
        restart_buffer: forget all but the newest state at each segment, as the released code does.
        evaluation_mode: how agents choose on dev during training.
        evaluation_batch_size: streams read side by side on dev and test; 1 starts no stream without its
            past.
    """

    skips: tuple[F.TimeSkip, ...]
    features: int | tuple[int, ...]
    batch_size: int
    num_steps: int
    dropout: float | LanguageModelDropout
    init_scale: float
    cell_options: tuple[dict[str, Any], ...]
    objective: AgentObjective
    transition: F.Transition = F.LSTM()  # noqa: RUF009 (immutable)
    depth_skip: F.DepthSkip | None = None
    character_options: dict[str, Any] | None = None
    embedding_features: int | None = None
    tied: bool = False
    activation_coef: float = 0.0
    temporal_coef: float = 0.0
    random_lengths: bool = False
    epochs: int = 1
    num_seeds: int = 1
    sweep: Sweep = Sweep()  # noqa: RUF009 (immutable)
    dtype: Any = None
    restart_buffer: bool = False
    evaluation_mode: ActionMode = "greedy"
    evaluation_batch_size: int = 10

    def __post_init__(self) -> None:
        """Spells out what a number stands for."""
        if not isinstance(self.dropout, LanguageModelDropout):
            object.__setattr__(self, "dropout", LanguageModelDropout.everywhere(self.dropout))


@dataclasses.dataclass(frozen=True)
class CacheGrid:
    """Neural caches to be tried in one evaluation: every θ with every λ.

    Attributes:
        size: N, how many words are kept.
        flatness: values of θ.
        weight: values of λ.
    """

    size: int
    flatness: tuple[float, ...]
    weight: tuple[float, ...]


class LanguageModelling:
    """Trains `LanguageModel` on a corpus; see `training.step.Task`."""

    monitor = "dev_perplexity"
    higher_is_better = False
    headline = "perplexity"
    batch_axis = None  # streams are cut once: every seed reads the same batches

    def __init__(self, corpus: LanguageCorpus, settings: LanguageModellingSettings):
        objective = settings.objective
        if objective.estimator != "reinforce":
            raise UserError(f"language models do not take the estimator {objective.estimator!r}")
        if objective.baseline not in ("none", "batch", "rollouts"):
            raise UserError(
                f"language models have no {objective.baseline!r} baseline: choose none, batch or rollouts"
            )
        self.corpus = corpus
        self.settings = settings
        self.lengths = self._segment_lengths()
        self.num_batches = len(self.lengths)
        self.examples_per_batch = settings.batch_size * sum(self.lengths) // self.num_batches
        self.graphdef = nnx.graphdef(abstract_model(corpus.vocabulary.tokens, settings))
        # What a model makes of a word's characters is computed once for each evaluation.
        read_only = nnx.eval_shape(lambda: self._with_table(self.init(jax.random.key(0))))
        self._read_only_graphdef = nnx.graphdef(read_only)
        self._read_only_params = jax.jit(
            jax.vmap(lambda params: nnx.state(self._with_table(params), nnx.Param))
        )
        self._evaluate_segment = jax.jit(
            jax.vmap(self._segment_sums, in_axes=(0, 0, None, 0, None, None)),
            static_argnums=(4, 5),
            donate_argnums=1,
        )

    def _segment_lengths(self) -> list[int]:
        """The length of each segment of an epoch, in the order of the first."""
        s = self.settings
        size = len(self.corpus.train)
        if not s.random_lengths:
            return [s.num_steps] * num_segments(size, s.batch_size, s.num_steps, drop_tail=True)
        row_length = num_segments(size, s.batch_size, 1, drop_tail=True)
        return bptt_lengths(row_length, s.num_steps, np.random.default_rng(0), drop_tail=True)

    def init(self, key: Key[Array, ""]) -> nnx.State:
        """See `Task`."""
        return nnx.state(make_model(self.corpus.vocabulary.tokens, self.settings, key), nnx.Param)

    def _with_table(self, params: nnx.State) -> LanguageModel:
        return nnx.merge(self.graphdef, params).with_table()

    def initial_carry(self, params: nnx.State, key: Key[Array, ""], batch_size: int | None = None) -> Any:
        """See `Task`; `batch_size` is the number of streams, by default that of training with rollouts."""
        streams = batch_size or self.settings.batch_size * self.settings.objective.rollouts
        return nnx.merge(self.graphdef, params).initialize_carry(streams, key)

    def train_batches(self, epoch: int) -> Iterable[Segment]:
        """See `Task`; streams are read in the same order in every epoch.

        Where lengths are random, every epoch has the same ones in another order.
        """
        lengths = self.lengths
        if self.settings.random_lengths and epoch > 0:
            lengths = np.random.default_rng([0, epoch]).permutation(lengths).tolist()
        return segments_of_lengths(
            self.corpus.train, self.settings.batch_size, lengths, first_token=self.end_of_line
        )

    @property
    def end_of_line(self) -> int:
        """The token that stands before the first of each split."""
        return self.corpus.vocabulary.index["<eos>"]

    def tokens(self, split: str) -> Int[np.ndarray, " tokens"]:
        """Returns the text of a split: `train`, `dev` or `test`."""
        return getattr(self.corpus, {"dev": "valid"}.get(split, split))

    def stage(self, epoch: int) -> AgentStage:
        """See `Task`."""
        s = self.settings
        return s.sweep.stage(s.objective.stage(epoch, s.epochs), s.num_seeds, s.skips)

    def policy(self, count: int, mode: str | None = None) -> F.Policy:
        """Returns how `count` models choose, each leaf (seeds, ...); by default as in evaluation."""
        s = self.settings
        return s.sweep.policy(mode or s.evaluation_mode, count, s.skips)

    def _read(
        self,
        model: LanguageModel,
        carry: Any,
        segment: Segment,
        policy: F.Policy,
        key: Key[Array, "..."] | None = None,
        shared_key: Key[Array, ""] | None = None,
    ) -> tuple[Any, LanguageModelOutput, Float[Array, "batch time"]]:
        """Returns the carry for the next segment, the output, and -log p of each target."""
        if self.settings.restart_buffer:
            carry = model.stack.restart_carry(carry)
        carry, output = model(
            segment.inputs,
            initial_carry=carry,
            policy=policy,
            rngs=key,
            shared_key=shared_key,
            deterministic=key is None,
            return_carry=True,
        )
        nll = optax.softmax_cross_entropy_with_integer_labels(output.logits, segment.targets)
        return carry, output, nll

    def loss(
        self,
        params: nnx.State,
        carry: Any,
        batch: Segment,
        keys: Key[Array, "*batch_or_none"],
        stage: AgentStage,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[Any, dict[str, Array]]]:
        """Cross-entropy summed over the segment and averaged over streams (the scale at which Zaremba et al.

        (2014) clip gradients at 5), plus the agent's loss on the same scale.
        """
        s = self.settings
        M, sampled = s.objective.rollouts, stage.policy.mode == "sample"
        # Rollouts of a stream differ in what their agents choose, and not in what is dropped.
        batch = s.objective.repeat(batch, stage)
        keys = keys if keys.ndim == 0 else s.objective.repeat(keys, stage)
        if not sampled and M > 1:  # relaxed choices do not differ between rollouts: one is enough
            carry = jax.tree.map(lambda leaf: leaf[::M], carry)
        carry, output, nll = self._read(
            nnx.merge(self.graphdef, params),
            carry,
            batch,
            stage.policy,
            key=keys,
            shared_key=_shared_key(keys, axis_name) if s.dropout.shares_noise else None,
        )
        correct = (output.logits.argmax(-1) == batch.targets).astype(nll.dtype)
        loss = s.objective.loss(
            stage, nll, output.decisions, valid=None, skips=s.skips, correct=correct, axis_name=axis_name
        )
        # Both are means over tokens, beside a sum over the segment's.
        penalty = F.activation_regularisation(output.dropped_states, s.activation_coef)
        penalty = penalty + F.temporal_activation_regularisation(output.states, s.temporal_coef)
        loss = loss + nll.shape[1] * penalty
        sums = self._sums(nll, batch.mask, output.decisions)
        return loss, (carry if sampled else _repeat(carry, M), sums)

    def _sums(self, nll, mask, decisions) -> dict[str, Array]:
        sums = {"nll": jnp.sum(nll, where=mask), "tokens": jnp.sum(mask, dtype=jnp.float32)}
        for i, (skip, decision) in enumerate(zip(self.settings.skips, decisions, strict=True)):
            if skip.has_agent:
                sums[f"entropy_{i}"] = jnp.sum(decision.entropy, where=mask)
                sums[f"skip_{i}"] = jnp.sum(decision.action.astype(jnp.float32), where=mask)
        return sums

    def summarise(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Perplexity; and of each layer's agent the mean entropy (nats) and the mean k."""
        with np.errstate(over="ignore"):
            metrics = {"perplexity": np.exp(sums["nll"].astype(np.float64) / sums["tokens"])}
            if "cached_nll" in sums:
                metrics["perplexity_cached"] = np.exp(sums["cached_nll"] / sums["tokens"][:, None, None])
        for i, skip in enumerate(self.settings.skips):
            if skip.has_agent:
                metrics[f"agent_entropy_{i + 1}"] = sums[f"entropy_{i}"] / sums["tokens"]
                metrics[f"agent_skip_{i + 1}"] = sums[f"skip_{i}"] / sums["tokens"]
        return metrics

    def segment_nll(
        self, params: nnx.State, carry: Any, segment: Segment, policy: F.Policy
    ) -> tuple[Any, Float[Array, "batch time"]]:
        """Returns the carry for the next segment and -log p of each target, in nats, as in evaluation."""
        model = nnx.merge(self.graphdef, params)
        carry, _, nll = self._read(model, carry, segment, policy)
        return carry, nll

    def _segment_sums(
        self,
        params,
        carry,
        segment: Segment,
        policy: F.Policy,
        samples: int,
        cache: CacheGrid | None,
    ):
        """One segment of evaluation; what follows the carry is of the streams, not of their samples."""
        carry, past = carry
        repeated = _repeat(segment, samples)
        model = nnx.merge(self._read_only_graphdef, params)
        carry, output, nll_of_samples = self._read(model, carry, repeated, policy)
        shape = (len(segment.inputs), samples, -1)

        def averaged(nll):
            return -F.averaged_log_likelihood(jnp.moveaxis(-nll.reshape(shape), 1, -1))

        nll = averaged(nll_of_samples)
        decisions = jax.tree.map(lambda leaf: leaf.reshape(shape).mean(axis=1), output.decisions)
        actions = tuple(decision.action[::samples] for decision in output.decisions)
        sums = self._sums(nll, segment.mask, decisions)
        if cache is not None:
            past, cached = _cached_nll(cache, past, output.states, repeated.targets, nll_of_samples)
            cached = jax.vmap(jax.vmap(averaged))(cached)
            sums["cached_nll"] = jnp.sum(cached, axis=(-2, -1), where=segment.mask)
        return (carry, past), sums, actions

    def _run(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        mode: ActionMode,
        batch_size: int,
        samples: int = 1,
        cache: CacheGrid | None = None,
    ) -> Iterator[tuple[Segment, dict[str, Array], tuple[Array, ...]]]:
        """Reads a whole split; yields each segment with its sums and actions, (seeds, ...)."""
        tokens = self.tokens(split)
        num_steps = self.settings.num_steps
        if not self.settings.restart_buffer:
            # Long segments where few streams are read: less time spent in between, and the same result.
            num_steps = max(num_steps, 400 // (batch_size * samples))
        start = partial(self._start_of_evaluation, batch_size=batch_size * samples, cache=cache)
        carry = jax.vmap(start)(params, keys)
        if self._read_only_graphdef != self.graphdef:
            params = self._read_only_params(params)
        policy = self.policy(len(keys), mode)
        read = segments(tokens, batch_size, num_steps, drop_tail=False, first_token=self.end_of_line)
        for segment in read:
            carry, sums, actions = self._evaluate_segment(params, carry, segment, policy, samples, cache)
            yield segment, sums, actions

    def _start_of_evaluation(self, params, key, batch_size: int, cache: CacheGrid | None):
        """The model's carry, and the neural cache if there is one."""
        carry = self.initial_carry(params, key, batch_size)
        if cache is None:
            return carry, None
        features = self.settings.features
        features = features if isinstance(features, int) else features[-1]
        return carry, F.empty_cache(batch_size, cache.size, features)

    def evaluate(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: ActionMode | None = None,
        batch_size: int | None = None,
        samples: int = 1,
        cache: CacheGrid | None = None,
    ) -> dict[str, np.ndarray]:
        """Perplexity of a whole split, every token of it counted; names lead with the split.

        Args:
            params: (seeds, ...).
            split: `train`, `dev` or `test`.
            keys: for sampled actions, (seeds,).
            mode: how agents choose; by default `evaluation_mode`.
            batch_size: streams read side by side; by default `evaluation_batch_size`.
            samples: M, how often each stream is read, side by side; the M probabilities of each token are
                averaged, and so are the agents' entropies and skips.
            cache: neural caches with which perplexity is measured as well, each sample with its own:
                `perplexity_cached`, (seeds, θ, λ).
        """
        totals: dict[str, np.ndarray] = {}
        read = self._run(
            params,
            split,
            keys,
            mode or self.settings.evaluation_mode,
            batch_size or self.settings.evaluation_batch_size,
            samples,
            cache,
        )
        for _, sums, _ in read:
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
        return {f"{split}_{name}": value for name, value in self.summarise(totals).items()}

    def trace(
        self, params: nnx.State, split: str, keys: Key[Array, " seeds"], layer: int
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, "seeds tokens"]]:
        """What the agent of a layer chose, greedily, at each input token of a split.

        Returns:
            Input token ids, (tokens,), and k for each, (seeds, tokens).
        """
        inputs, chosen = [], []
        for segment, _, actions in self._run(params, split, keys, "greedy", 10):
            inputs.append(segment.inputs[segment.mask])
            chosen.append(np.asarray(actions[layer])[:, segment.mask])
        return np.concatenate(inputs), np.concatenate(chosen, axis=1)


def make_model(
    words: Sequence[str], settings: LanguageModellingSettings, key: Key[Array, ""]
) -> LanguageModel:
    """Returns a fresh model of the language whose vocabulary is `words`, in the order of their ids."""
    rngs, weight_init = nnx.Rngs(key), uniform(settings.init_scale)
    embedding = None
    if settings.character_options is not None:
        characters, _ = character_table(words)
        embedding = CharEmbedding(
            characters, **settings.character_options, weight_init=weight_init, dtype=settings.dtype, rngs=rngs
        )
    return LanguageModel(
        len(words),
        settings.features,
        settings.skips,
        transition=settings.transition,
        depth_skip=settings.depth_skip,
        embedding=embedding,
        embedding_features=settings.embedding_features,
        tied=settings.tied,
        dropout=settings.dropout,
        dtype=settings.dtype,
        weight_init=weight_init,
        cell_options=settings.cell_options,
        rngs=rngs,
    )


def abstract_model(words: Sequence[str], settings: LanguageModellingSettings) -> LanguageModel:
    """Returns such a model with shapes in the place of its parameters."""
    return nnx.eval_shape(lambda: make_model(words, settings, jax.random.key(0)))


def _cached_nll(
    cache: CacheGrid,
    past: F.CacheCarry,
    states: Float[Array, "batch time hidden"],
    targets: Int[Array, "batch time"],
    nll: Float[Array, "batch time"],
) -> tuple[F.CacheCarry, Float[Array, "flatness weight batch time"]]:
    """What each cache makes of a segment; what it remembers is the same for all."""

    def of(flatness, weight):
        return F.cached_log_likelihood(past, states, targets, -nll, flatness=flatness, weight=weight)

    grid = jax.vmap(jax.vmap(of, (None, 0), (None, 0)), (0, None), (None, 0))
    past, log_likelihood = grid(jnp.asarray(cache.flatness), jnp.asarray(cache.weight))
    return past, -log_likelihood


def _repeat(tree: Any, times: int) -> Any:
    """Every stream `times` times, its copies one after the other."""
    return tree if times == 1 else jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)


def _shared_key(keys: Key[Array, "*batch_or_none"], axis_name: str | None) -> Key[Array, ""]:
    """One key for all streams, also of a batch that is divided over a mapped axis; none of theirs."""
    data = jax.random.key_data(keys if keys.ndim == 0 else keys[0])
    if axis_name is not None:
        data = jax.lax.all_gather(data, axis_name)[0]
    return jax.random.fold_in(jax.random.wrap_key_data(data), 2**31 - 1)


def uniform(scale: float):
    """Returns an initializer that draws from U(-scale, scale)."""

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return init
