"""Train agents by proximal policy optimization, all seeds in one program, resumable bit for bit.

An update plays whole episodes from fresh resets, whose seeds follow from the number of the update,
and passes over them a few times. So no environment is saved. Run folder, checkpoints, progress and
results are those of `training.loop`; records call an update an epoch, and their `step` is the
number of environment steps of a seed so far.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Key
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.agents.actor_critic import AgentOutput
from dynskip_jax.agents.environments import Environments
from dynskip_jax.agents.rollout import Episodes, Player
from dynskip_jax.config.settings import Agent
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.rl import ppo
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.training.interruptions import interruptions
from dynskip_jax.training.loop import FitResult, FitSettings
from dynskip_jax.training.mesh import Parallel
from dynskip_jax.training.progress import Progress
from dynskip_jax.training.resume import Saver, TrainProgress
from dynskip_jax.training.scheduled import policy_mode
from dynskip_jax.training.step import TrainState, of_epoch, seed_keys

# Of the seeds of resets: what an episode is played for.
_SPLITS = {"train": 0, "dev": 1, "test": 2}
_ROUNDS = {"dev": 1, "test": 4}  # of as many episodes as an update has


class AgentLearner(Learner):
    """Train and evaluate agents, one for each seed; the task describes environment and model.

    The task has `info`, an `EnvironmentInfo`, the groups of settings `agent` and `ppo`, and
    `temperature`, a function of the environment steps so far.
    """

    counts = "environment steps"
    axis = "step"

    @functools.cached_property
    def player(self) -> Player:
        """The environments of all seeds, and the compiled step of the policies in them."""
        count = self.task.batch_size
        environments = Environments(self.task.info, len(self.seeds) * count)
        return Player(self.graphdef, self.skips, environments, len(self.seeds), count)

    @override
    def policy(self, mode: str | None = None) -> F.Policy:
        """Return the policy of the models in this mode, with the temperature at the end.

        `train`, the default, chooses as in training.
        """
        return self._policy_at(self.task.ppo.steps, mode or self.evaluation_mode)

    def _policy_at(self, steps: int, mode: str = "train") -> F.Policy:
        """Return the policy after so many environment steps."""
        in_training = policy_mode(self.objective, 0)
        policy = super().policy(in_training if mode == "train" else mode)
        if in_training == "sample":
            return policy
        temperature = np.float32(self.task.temperature(steps))
        return dataclasses.replace(policy, temperature=policy.temperature * temperature)

    def _play(
        self,
        params: nnx.State,
        split: str,
        number: int,
        keys: Key[Array, " seeds"],
        policy: F.Policy,
        greedy: bool = False,
    ) -> Episodes:
        """Play episodes from resets whose seeds follow from seed, split and number."""
        count = self.task.batch_size
        roots = [np.random.SeedSequence((seed, _SPLITS[split], number)) for seed in self.seeds]
        seeds = np.concatenate([root.generate_state(count) for root in roots])
        return self.player.play(params, seeds, of_epoch(keys, number), policy, greedy=greedy)

    # --- Training ---

    @override
    def fit(
        self,
        settings: FitSettings,
        run_dir: RunDir | None,
        *,
        parallel: Parallel | None = None,
        should_stop: Callable[[int], bool] = lambda step: False,
    ) -> FitResult:
        """Train all seeds for `settings.epochs` environment steps each; see `training.loop.fit`."""
        if parallel is not None and parallel.processes.count > 1:
            raise UserError("agents are trained by one process: leave out --coordinator, --process")
        keys = seed_keys(settings.seeds)
        update = self.make_update(settings.optimizer)
        state = self.start_state(settings, keys.init)
        progress = TrainProgress.start(len(settings.seeds))
        saver = Saver(run_dir, Parallel(), settings.checkpoint_minutes)

        with interruptions() as interrupted:
            state, _, progress = saver.restore(state, state.params, progress)
            total = settings.epochs
            with Progress(max(total, progress.step), "training", start=progress.step) as bar:
                while progress.step < total:
                    policy = self._policy_at(progress.step)
                    rates = settings.learning_rate(progress.epoch, -progress.history)
                    rates = jnp.broadcast_to(jnp.asarray(rates, jnp.float32), len(self.seeds))

                    started = time.monotonic()
                    episodes = self._play(state.params, "train", progress.epoch, keys.train, policy)
                    state, losses = update(state, episodes, rates, policy)
                    losses = jax.device_get(losses)
                    seconds = time.monotonic() - started

                    _check_finite(losses, self.seeds)
                    returns = episodes.returns.mean(-1)
                    steps = round(float(episodes.lengths.sum(-1).mean()))
                    progress.step += steps
                    progress.finish_epoch(returns, higher_is_better=True, patience=0)
                    if run_dir is not None:
                        run_dir.log(_record(progress, episodes, losses, policy))
                    shown = {"return": returns.mean(), "steps/s": steps * len(self.seeds) / seconds}
                    bar.advance(
                        steps, **{name: functools.partial(float, of) for name, of in shown.items()}
                    )

                    stopping = interrupted() or should_stop(progress.step)
                    if stopping or saver.is_due() or progress.step >= total:
                        saver.save(state, state.params, progress)
                    if stopping:
                        saved = "" if run_dir is None else "; progress is saved"
                        raise Stopped(f"stopped after step {progress.step:,} of {total:,}{saved}")
        progress.seconds = saver.seconds()
        last = np.full(len(self.seeds), progress.epoch)
        skipped = np.asarray(state.skipped)[:, 1]
        return FitResult(state.params, last, progress.step, progress.seconds, skipped)

    def start_state(self, settings: FitSettings, keys: Key[Array, " seeds"]) -> TrainState:
        """Return the state before the first update."""
        params = settings.start
        if params is None:
            # One seed after the other, as in `training.step.start_state`.
            params = jax.jit(functools.partial(jax.lax.map, self.init))(keys)
        return TrainState(
            params=params,
            opt_state=jax.jit(jax.vmap(settings.optimizer.init))(params),
            carry=(),
            sums={},
            skipped=jnp.zeros((len(self.seeds), 2), jnp.int32),
        )

    def make_update(self, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
        """Return the compiled update of all seeds, of which each leaf is (seeds, ...)."""
        settings = self.task.ppo

        def update(
            state: TrainState, episodes: Episodes, rate: Float[Array, ""], policy: F.Policy
        ) -> tuple[TrainState, dict[str, Array]]:
            before, old_log_probs = self._read(state.params, episodes, policy)
            advantages, targets = _credit(episodes, before.values, self.task.agent)
            gradient = jax.grad(self._loss, has_aux=True)
            # Episodes are drawn independently, so a pass need not shuffle them.
            minibatches = jax.tree.map(
                lambda rows: rows.reshape(settings.minibatches, -1, *rows.shape[1:]),
                (episodes, old_log_probs, advantages, targets),
            )

            def one_step(carry, minibatch):
                params, opt_state = carry
                grads, losses = gradient(params, policy, *minibatch)
                directions, opt_state = optimizer.update(grads, opt_state, params)
                params = jax.tree.map(lambda p, d: p - rate.astype(p.dtype) * d, params, directions)
                squares = (jnp.square(leaf).sum() for leaf in jax.tree.leaves(grads))
                return (params, opt_state), losses | {"gradient_norm": jnp.sqrt(sum(squares))}

            def one_pass(carry, _):
                return jax.lax.scan(one_step, carry, minibatches)

            start = (state.params, state.opt_state)
            (params, opt_state), losses = jax.lax.scan(one_pass, start, length=settings.passes)
            losses = jax.tree.map(jnp.mean, losses)
            return state._replace(params=params, opt_state=opt_state), losses

        return jax.jit(jax.vmap(update), donate_argnums=0)

    def _read(
        self, params: nnx.State, episodes: Episodes, policy: F.Policy
    ) -> tuple[AgentOutput, ppo.Steps]:
        """Return one seed's output at all steps, and log π of what was done there.

        Sampled choices are part of what was done; relaxed ones are part of the network.
        """
        _, output = self.model(params)(
            episodes.observations,
            jnp.roll(episodes.actions, 1, axis=1),
            jnp.arange(episodes.counted.shape[-1]),
            policy=policy,
            actions=episodes.choices,
        )
        sizes = self.task.info.action_sizes
        log_probs = ppo.action_log_prob(output.logits, episodes.actions, sizes)
        for trace in _replayed(output):
            log_probs += self.objective.rl_coef * trace.log_prob
        return output, log_probs

    def _loss(
        self,
        params: nnx.State,
        policy: F.Policy,
        episodes: Episodes,
        old_log_probs: ppo.Steps,
        advantages: ppo.Steps,
        targets: ppo.Steps,
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Return one seed's loss and what it consists of."""
        settings = self.task.ppo
        mean = functools.partial(ppo.mean_over_steps, counted=episodes.counted)
        output, log_probs = self._read(params, episodes, policy)
        log_ratios = log_probs - old_log_probs
        entropy = ppo.action_entropy(output.logits, self.task.info.action_sizes)
        for trace in _replayed(output):
            entropy += self.objective.rl_coef * trace.entropy
        parts = {
            "surrogate": mean(ppo.clipped_surrogate(log_ratios, advantages, settings.clip_ratio)),
            "value_loss": mean(jnp.square(output.values - targets)),
            "entropy": mean(entropy),
            "kl": mean(jnp.expm1(log_ratios) - log_ratios),
        }
        loss = parts["surrogate"] + settings.value_coef * parts["value_loss"]
        loss -= self.task.agent.entropy_coef * parts["entropy"]
        if self.objective.update_cost:
            weights = episodes.counted.astype(jnp.float32)
            loss += self.objective.update_cost * rl.tokens_read(output.decisions, weights=weights)
        return loss, parts

    # --- Evaluation ---

    @override
    def modes(self, spec: Any, samples: int) -> dict[str, tuple[str, int]]:
        """Return that agents choose as in training, greedily and, if they choose, by samples."""
        modes = {"": ("train", 1), "_greedy": ("greedy", 1)}
        if spec.choices_matter():
            modes["_sampled"] = ("sample", 1)
        return modes

    @override
    def evaluate(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: str | None = None,
        advance: Callable[[float], None] = lambda _: None,
        **_: Any,
    ) -> dict[str, np.ndarray]:
        """Return the mean return and length of episodes that were not trained on, (seeds,).

        Choices are greedy, sampled, or by default as at the end of training. With greedy choices
        the most probable actions are taken; otherwise they are sampled.
        """
        mode = mode or self.evaluation_mode
        policy = self.policy(mode)
        played = [
            self._play(params, split, number, keys, policy, greedy=mode == "greedy")
            for number in range(_ROUNDS[split])
        ]
        advance(1)
        return {
            f"{split}_return": np.mean([episodes.returns.mean(1) for episodes in played], axis=0),
            f"{split}_length": np.mean([episodes.lengths.mean(1) for episodes in played], axis=0),
        }


def _replayed(output: AgentOutput) -> list[F.DecisionTrace]:
    """Return the decisions that were sampled in the episodes, of agents that can learn."""
    return [trace for trace in output.decisions if trace.mode == "replayed"]


def _credit(episodes: Episodes, values: ppo.Steps, agent: Agent) -> tuple[ppo.Steps, ppo.Steps]:
    """Return normalized advantages, and the targets of the values."""
    counted = episodes.counted
    # The last step of a row never counts.
    is_last = ~jnp.roll(counted, -1, axis=-1)
    advantages = ppo.generalized_advantages(
        episodes.rewards,
        agent.discount * (1.0 - episodes.terminated),
        agent.gae_lambda * (1.0 - is_last),
        values,
        jnp.roll(values, -1, axis=-1),
    )
    return ppo.normalized(advantages, counted), advantages + values


def _record(
    progress: TrainProgress, episodes: Episodes, losses: dict[str, np.ndarray], policy: F.Policy
) -> dict[str, Any]:
    """Return one line of metrics.jsonl: each metric is a list with one value for each seed."""
    metrics = {
        "return": episodes.returns.mean(-1),
        "length": episodes.lengths.mean(-1),
        "temperature": policy.temperature,
        **losses,
    }
    each = {f"train_{name}": np.asarray(of, float).tolist() for name, of in metrics.items()}
    return {"step": progress.step, "epoch": progress.epoch, "split": "train", **each}


def _check_finite(losses: dict[str, np.ndarray], seeds: tuple[int, ...]) -> None:
    """Raise a `UserError` if an update was not finite; the last checkpoint is intact."""
    total = sum(losses.values())
    wrong = [str(seed) for seed, of in zip(seeds, total, strict=True) if not np.isfinite(of)]
    if wrong:
        raise UserError(
            f"loss or gradient of seed {', '.join(wrong)} is not finite: lower --learning-rate "
            "or set --clip"
        )
