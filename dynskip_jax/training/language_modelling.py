"""Language modelling as a task for the loop: truncated BPTT over streams, perplexity."""

import dataclasses
from collections.abc import Iterable
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
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.models import LanguageModel
from dynskip_jax.training.objective import AgentObjective, agent_loss
from dynskip_jax.training.stage import AgentValues, Stage, Sweep


@dataclasses.dataclass(frozen=True)
class LanguageModellingSettings:
    """The part of a configuration that this task needs.

    Attributes:
        skips: the time skip of each layer, bottom first.
        features: size of embedding and state.
        batch_size: streams read side by side in training.
        num_steps: steps of truncated back-propagation.
        dropout: on every layer's input and before the softmax.
        init_scale: weights are drawn from U(-init_scale, init_scale).
        cell_options: options of `SkipLSTMCell` for each layer.
        objective: how agents are rewarded.
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
    features: int
    batch_size: int
    num_steps: int
    dropout: float
    init_scale: float
    cell_options: tuple[dict[str, Any], ...]
    objective: AgentObjective
    epochs: int = 1
    num_seeds: int = 1
    sweep: Sweep = Sweep()  # noqa: RUF009 (immutable)
    dtype: Any = None
    restart_buffer: bool = False
    evaluation_mode: ActionMode = "greedy"
    evaluation_batch_size: int = 10


class LanguageModelling:
    """Trains `LanguageModel` on a corpus; see `training.loop.Task`."""

    monitor = "dev_perplexity"
    higher_is_better = False
    headline = "perplexity"
    batch_axis = None  # streams are cut once: every seed reads the same batches

    def __init__(self, corpus: LanguageCorpus, settings: LanguageModellingSettings):
        if settings.objective.rollouts != 1:
            raise UserError("language models are trained on one rollout of each stream")
        if settings.objective.baseline not in ("none", "batch"):
            raise UserError(
                f"language models have no {settings.objective.baseline!r} baseline: choose none or batch"
            )
        self.examples_per_batch = settings.batch_size * settings.num_steps
        self.corpus = corpus
        self.settings = settings
        self.num_batches = num_segments(
            len(corpus.train), settings.batch_size, settings.num_steps, drop_tail=True
        )
        self.graphdef = nnx.graphdef(nnx.eval_shape(lambda: self._model(jax.random.key(0))))
        self._evaluate_segment = jax.jit(
            jax.vmap(self._segment_sums, in_axes=(0, 0, None, 0, None)), static_argnums=4, donate_argnums=1
        )

    def _model(self, key: Key[Array, ""]) -> LanguageModel:
        s = self.settings
        return LanguageModel(
            len(self.corpus.vocabulary),
            s.features,
            s.skips,
            dropout=s.dropout,
            dtype=s.dtype,
            weight_init=uniform(s.init_scale),
            cell_options=s.cell_options,
            rngs=nnx.Rngs(key),
        )

    def init(self, key: Key[Array, ""]) -> nnx.State:
        """See `Task`."""
        return nnx.state(self._model(key), nnx.Param)

    def initial_carry(self, params: nnx.State, key: Key[Array, ""], batch_size: int | None = None) -> Any:
        """See `Task`; `batch_size` is the number of streams, by default that of training."""
        return nnx.merge(self.graphdef, params).initialize_carry(batch_size or self.settings.batch_size, key)

    def train_batches(self, epoch: int) -> Iterable[Segment]:
        """See `Task`; streams are read in the same order in every epoch."""
        s = self.settings
        return self._segments(self.corpus.train, s.batch_size, s.num_steps, drop_tail=True)

    def _segments(self, tokens: np.ndarray, batch_size: int, num_steps: int, drop_tail: bool):
        end = self.corpus.vocabulary.index["<eos>"]
        return segments(tokens, batch_size, num_steps, drop_tail=drop_tail, first_token=end)

    def stage(self, epoch: int) -> Stage:
        """See `Task`; named after the way in which agents choose."""
        s = self.settings
        entropy_coef = s.objective.entropy_coef_at(epoch, s.epochs)
        temperature = s.objective.temperature_at(epoch)
        return Stage(s.objective.mode(epoch), self._agent_values(s.num_seeds, entropy_coef, temperature))

    def _agent_values(self, count: int, entropy_coef: float = 0.0, temperature: float = 1.0) -> AgentValues:
        K = max(skip.max_skip for skip in self.settings.skips)
        return self.settings.sweep.agent_values(count, K, entropy_coef, temperature)

    def _read(self, params, carry, segment: Segment, key, mode: ActionMode, values: AgentValues):
        if self.settings.restart_buffer:
            carry = tuple(F.restart_carry(layer) for layer in carry)
        carry, output = nnx.merge(self.graphdef, params)(
            carry,
            segment.inputs,
            key=key,
            mode=mode,
            temperature=values.temperature,
            mix=values.mix,
            policy_mask=values.policy_mask,
        )
        nll = optax.softmax_cross_entropy_with_integer_labels(output.logits, segment.targets)
        return carry, output, nll

    def loss(
        self,
        params: nnx.State,
        carry: Any,
        batch: Segment,
        keys: Key[Array, "*batch_or_none"],
        stage: Stage,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[Any, dict[str, Array]]]:
        """Cross-entropy summed over the segment and averaged over streams (the scale at which Zaremba et al.

        (2014) clip gradients at 5), plus the agent's loss on the same scale.
        """
        s = self.settings
        uses_dropout = s.dropout > 0 or any(o.get("recurrent_dropout") for o in s.cell_options)
        mode, values = stage
        carry, output, nll = self._read(params, carry, batch, keys if uses_dropout else None, mode, values)
        correct = (output.logits.argmax(-1) == batch.targets).astype(nll.dtype)
        rewards = s.objective.rewards(-nll, correct)
        agent = agent_loss(
            s.objective,
            s.skips,
            output.decisions,
            rewards,
            axis_name,
            mode=mode,
            entropy_coef=values.entropy_coef,
        )
        loss = nll.sum(axis=1).mean() + agent
        return loss, (carry, self._sums(nll, batch.mask, output.decisions))

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
        for i, skip in enumerate(self.settings.skips):
            if skip.has_agent:
                metrics[f"agent_entropy_{i + 1}"] = sums[f"entropy_{i}"] / sums["tokens"]
                metrics[f"agent_skip_{i + 1}"] = sums[f"skip_{i}"] / sums["tokens"]
        return metrics

    def _segment_sums(self, params, carry, segment: Segment, values: AgentValues, mode: ActionMode):
        carry, output, nll = self._read(params, carry, segment, None, mode, values)
        actions = tuple(decision.action for decision in output.decisions)
        return carry, self._sums(nll, segment.mask, output.decisions), actions

    def _run(self, params, split: str, keys, mode: ActionMode, batch_size: int):
        """Reads a whole split; yields each segment with its sums and actions, (seeds, ...)."""
        tokens = getattr(self.corpus, {"dev": "valid"}.get(split, split))
        num_steps = self.settings.num_steps
        if not self.settings.restart_buffer:
            # Long segments where few streams are read: less time spent in between, and the same result.
            num_steps = max(num_steps, 400 // batch_size)
        carry = jax.vmap(partial(self.initial_carry, batch_size=batch_size))(params, keys)
        values = self._agent_values(len(keys))
        for segment in self._segments(tokens, batch_size, num_steps, drop_tail=False):
            carry, sums, actions = self._evaluate_segment(params, carry, segment, values, mode)
            yield segment, sums, actions

    def evaluate(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: ActionMode | None = None,
        batch_size: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Perplexity of a whole split, every token of it counted; names lead with the split.

        Args:
            params: (seeds, ...).
            split: `train`, `dev` or `test`.
            keys: for sampled actions, (seeds,).
            mode: how agents choose; by default `evaluation_mode`.
            batch_size: streams read side by side; by default `evaluation_batch_size`.
        """
        totals: dict[str, np.ndarray] = {}
        read = self._run(
            params,
            split,
            keys,
            mode or self.settings.evaluation_mode,
            batch_size or self.settings.evaluation_batch_size,
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


def uniform(scale: float):
    """Returns an initializer that draws from U(-scale, scale)."""

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return init
