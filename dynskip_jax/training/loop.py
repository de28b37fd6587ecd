"""The training loop: epochs of compiled steps for several seeds at once, early stopping, resuming."""

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key
from rich.console import Console

from dynskip_jax.devices.memory import memory_line, program_memory
from dynskip_jax.devices.parallel import (
    PER_EXAMPLE,
    PER_SEED,
    OneDevice,
    P,
    Parallel,
    batch_spec,
    mean_over,
    own_examples,
    sum_over,
)
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.runs.checkpoint import Checkpoints
from dynskip_jax.runs.progress import Progress
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.training.asgd import AveragedState, average_start, average_update

PyTree = Any
Sums = dict[str, Array]
Metrics = dict[str, np.ndarray]  # one value per seed


@runtime_checkable
class Task(Protocol):
    """What the loop trains. Everything is for one seed; the loop maps it over seeds.

    Attributes:
        monitor: the dev metric that selects the best epoch, as in `dev_perplexity`.
        higher_is_better: whether more of it is better.
        headline: the training metric shown beside the progress bar.
        num_batches: batches in an epoch.
        examples_per_batch: examples (of a language model: tokens) that one model sees in a batch.
        batch_axis: 0 if each seed has batches of its own, stacked; None if all share them. Beyond that every
            leaf of a batch leads with its examples.
    """

    monitor: str
    higher_is_better: bool
    headline: str
    num_batches: int
    examples_per_batch: int
    batch_axis: int | None

    def init(self, key: Key[Array, ""]) -> PyTree:
        """Returns fresh parameters."""

    def initial_carry(self, params: PyTree, key: Key[Array, ""]) -> PyTree:
        """Returns what the first step of an epoch starts from; every leaf leads with the examples."""

    def loss(
        self,
        params: PyTree,
        carry: PyTree,
        batch: PyTree,
        keys: Key[Array, " batch"],
        stage: PyTree,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[PyTree, Sums]]:
        """Returns the loss, the carry for the next step, and sums from which metrics are made.

        The loss is a mean over examples, each of which draws its noise with a key of its own: the batch may
        then be divided among devices. Where it is divided over a mapped axis (`axis_name`, under pmap),
        whatever one example takes from the others (a baseline) has to be exchanged over that axis.
        """

    def stage(self, epoch: int) -> PyTree:
        """Returns what the steps of an epoch (from 0) are told; equal each time it is asked.

        Every leaf is a number for each seed, (seeds, ...). What is static belongs to the structure: the step
        is compiled anew where that changes.
        """

    def train_batches(self, epoch: int) -> Iterable[PyTree]:
        """Returns the batches of an epoch, the same ones each time it is asked."""

    def summarise(self, sums: dict[str, np.ndarray]) -> Metrics:
        """Turns sums, which lead with the seed axis, into metrics."""

    def evaluate(self, params: PyTree, split: str, keys: Key[Array, " seeds"]) -> Metrics:
        """Returns the metrics of one split for parameters that lead with the seed axis."""


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How long and how to train.

    Attributes:
        seeds: one model is trained for each, all in one program.
        epochs: passes over the training split.
        optimizer: direction of descent; see `make_optimizer`.
        learning_rate: from (epoch, dev history (epochs so far, seeds)) to a rate for each seed, (seeds,). In
            this history lower is better: a metric of which more is better is negated.
        average: from the same history to whether each seed's iterates are averaged from
            now on, (seeds,); the averages are then what is evaluated and kept. None never averages.
        start: parameters to start from in place of fresh ones, (seeds, ...).
        patience: stop a seed after this many epochs without a better dev metric; 0 never stops.
        max_skipped: steps in a row that a seed may skip because its loss or gradient is not finite, before
            training ends.
        log_every: steps between records of training metrics.
        checkpoint_minutes: at most this much work is lost to a crash (an epoch's end always saves).
    """

    seeds: tuple[int, ...]
    epochs: int
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[int, np.ndarray], np.ndarray]
    average: Callable[[np.ndarray], np.ndarray] | None = None
    start: PyTree | None = None
    patience: int = 0
    max_skipped: int = 100
    log_every: int = 100
    checkpoint_minutes: float = 10.0


class TrainState(NamedTuple):
    """What a step replaces; every leaf leads with the seed axis, and the carry's go on with the examples.

    Attributes:
        params: the parameters.
        opt_state: the optimizer's.
        carry: of the task.
        sums: from which the metrics of the epoch so far are made.
        average: of the iterates, if they are averaged.
        skipped: steps whose loss or gradient was not finite and which changed nothing: those in a row up to
            now, and all of them, (seeds, 2).
    """

    params: PyTree
    opt_state: PyTree
    carry: PyTree
    sums: Sums
    average: AveragedState | None = None
    skipped: Int[Array, "*seeds two"] | None = None


LAYOUT = TrainState(
    params=PER_SEED, opt_state=PER_SEED, carry=PER_EXAMPLE, sums=PER_SEED, average=PER_SEED, skipped=PER_SEED
)


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What training leaves.

    Attributes:
        params: the parameters of each seed's best epoch on dev, (seeds, ...).
        best_epoch: 1-based, (seeds,).
        epochs: how many epochs were run.
        seconds: time spent, earlier parts of a resumed run included.
    """

    params: PyTree
    best_epoch: np.ndarray
    epochs: int
    seconds: float


def fit(
    task: Task,
    settings: FitSettings,
    run_dir: RunDir | None,
    *,
    parallel: Parallel | None = None,
    announce: Callable[[str], None] = print,
    should_stop: Callable[[int], bool] = lambda step: False,
) -> FitResult:
    """Trains, keeps the parameters of the best epoch on dev, and resumes what the run folder holds.

    Interrupted (Ctrl-C, SIGTERM) it saves after the step in progress, or after the evaluation that follows an
    epoch's last step, and raises `Stopped`.

    Args:
        task: what to train.
        settings: how.
        run_dir: receives metrics and checkpoints, the same ones on one device and on many: a run may go on
            with another number of devices than it began with. Of several processes only the first has one.
        parallel: on which devices, and how; by default one.
        announce: says what the user should know.
        should_stop: asked where it could stop, with the number of steps taken.

    Returns:
        The best parameters of each seed.

    Raises:
        Stopped: it was interrupted; the same call continues bit for bit.
    """
    parallel = parallel or OneDevice()
    processes = parallel.processes
    num_seeds = len(settings.seeds)
    keys = _keys(settings.seeds)
    train_keys = parallel.place(keys.train, PER_SEED)
    step = _make_step(task, settings.optimizer, parallel)
    select = jax.jit(_select_seeds)
    initial_carry = jax.jit(jax.vmap(task.initial_carry))
    clock = time.monotonic()

    params = jax.jit(jax.vmap(task.init))(keys.init) if settings.start is None else settings.start
    state = TrainState(
        params=params,
        opt_state=jax.jit(jax.vmap(settings.optimizer.init))(params),
        carry=initial_carry(params, _for_epoch(keys.carry, 0)),
        sums=_zero_sums(task, params, keys),
        average=None if settings.average is None else jax.vmap(average_start)(params),
        skipped=jnp.zeros((num_seeds, 2), jnp.int32),
    )
    best = jax.tree.map(jnp.copy, params)
    where = _Position.start(num_seeds)
    no_sums = jax.tree.map(np.asarray, state.sums)

    # What is written and read, the first process writes and reads.
    folder = contextlib.nullcontext() if run_dir is None else Checkpoints(run_dir.checkpoints)
    with folder as checkpoints, _interruptions() as interrupted:
        restored = checkpoints and checkpoints.restore_latest({"state": state, "best": best})
        if restored is not None:
            state, best = restored.state["state"], restored.state["best"]
            for line in restored.skipped:
                announce(f"warning: {line}")
        meta = processes.agree(restored and restored.meta)
        if meta is not None:
            where = _Position.from_meta(meta)
            state, best = processes.share((state, best))
            announce(f"resuming after step {where.step:,} (epoch {where.epoch + 1})")
        state = _place(parallel, state)
        if run_dir is not None:
            run_dir.rewind(where.step)
        seconds_before, first_step = where.seconds, where.step

        def save() -> None:
            where.seconds = seconds_before + time.monotonic() - clock
            whole = {"state": _gather(parallel, state), "best": best}
            if checkpoints is not None:
                checkpoints.save(where.step, whole, where.to_meta())

        def log(split: str, metrics: Metrics, rates: Array) -> None:
            if run_dir is not None:
                run_dir.log(_record(task, where, split, metrics, rates))

        def stop_asked() -> bool:
            return processes.anyone(interrupted() or should_stop(where.step))

        def save_due() -> bool:
            return processes.agree(time.monotonic() - last_save > 60 * settings.checkpoint_minutes)

        def stopped() -> Stopped:
            return Stopped(f"stopped after step {where.step:,} of {total:,}; progress is saved")

        def train_metrics() -> Metrics:
            sums = parallel.gather(state.sums)
            return task.summarise({name: np.asarray(value) for name, value in sums.items()})

        def check_finite() -> None:
            """Ends a run that has gone nowhere for long."""
            in_a_row, _ = np.asarray(parallel.gather(state.skipped)).T
            if (stuck := np.flatnonzero(in_a_row > settings.max_skipped)).size:
                saved = checkpoints and checkpoints.latest_step
                raise UserError(
                    f"at step {where.step:,} loss or gradient of seed "
                    f"{', '.join(str(settings.seeds[i]) for i in stuck)} was not finite for "
                    f"{in_a_row[stuck].max()} steps in a row; the last checkpoint is of step {saved or 0:,}: "
                    "lower --learning-rate or set --clip"
                )

        def headline() -> float:
            return float(np.mean(train_metrics()[task.headline]))

        last_save = time.monotonic()
        total = settings.epochs * task.num_batches
        start = where.epoch * task.num_batches + where.batch
        console = None if processes.first else Console(quiet=True)
        # With several processes a metric takes all of them to fetch: only where all of them log.
        shown = {task.headline: headline} if processes.count == 1 else {}
        with Progress(total, "training", start=start, console=console) as progress:
            while where.epoch < settings.epochs and not where.finished(settings.patience):
                losses = -where.history if task.higher_is_better else where.history
                rates = settings.learning_rate(where.epoch, losses)
                rates = jnp.asarray(rates, jnp.float32)
                placed_rates = parallel.place(rates, PER_SEED)
                stage = parallel.place(task.stage(where.epoch), PER_SEED)
                averaged = np.zeros(num_seeds, bool)
                if settings.average is not None:
                    averaged = settings.average(losses)
                averaged = parallel.place(jnp.asarray(averaged), PER_SEED)
                if where.batch == 0:
                    carry = initial_carry(parallel.gather(state.params), _for_epoch(keys.carry, where.epoch))
                    state = state._replace(
                        carry=parallel.place(carry, PER_EXAMPLE),
                        sums=parallel.place(jax.tree.map(jnp.zeros_like, no_sums), PER_SEED),
                    )
                for batch in itertools.islice(task.train_batches(where.epoch), where.batch, None):
                    batch = parallel.place(batch, batch_spec(task.batch_axis))
                    arguments = state, batch, train_keys, where.step, placed_rates, stage, averaged
                    if where.step == first_step:
                        memory = program_memory(step, *arguments)
                        if memory is not None:
                            announce(memory_line(memory))
                    state = step(*arguments)
                    where.step += 1
                    where.batch += 1
                    progress.advance(1, **shown)
                    if where.step % settings.log_every == 0:
                        log("train", train_metrics(), rates)
                        check_finite()
                    if where.batch == task.num_batches:
                        break  # the end of the epoch saves, after its records: one checkpoint per step
                    if stop_asked():
                        save()
                        raise stopped()
                    if save_due():
                        save()
                        last_save = time.monotonic()
                if where.batch < task.num_batches:
                    raise UserError(
                        f"the task yielded {where.batch} batches in epoch {where.epoch + 1} "
                        f"and said that there would be {task.num_batches}"
                    )
                check_finite()

                # Before the iterates are averaged, their average is the last one.
                params = state.params if state.average is None else state.average.mean
                train, params = train_metrics(), parallel.gather(params)
                dev = task.evaluate(parallel.spread(params), "dev", parallel.spread(keys.evaluate))
                dev = processes.agree(dev)
                dev = {name: np.asarray(value) for name, value in dev.items()}
                better = where.finish_epoch(dev[task.monitor], task.higher_is_better, settings.patience)
                best = select(jnp.asarray(better), params, best)
                log("train", train, rates)
                log("dev", dev, rates)
                line = _epoch_line(task, where, settings.epochs, train, dev, rates)
                progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                save()
                last_save = time.monotonic()
                if stop_asked():
                    raise stopped()
        where.seconds = seconds_before + time.monotonic() - clock
    return FitResult(best, where.best_epoch, where.epoch, where.seconds)


@dataclasses.dataclass
class _Position:
    """Where training stands: everything but arrays that a checkpoint keeps."""

    epoch: int
    batch: int
    step: int
    seconds: float
    history: np.ndarray  # the monitored dev metric, (epochs so far, seeds)
    best_epoch: np.ndarray  # 1-based, 0 before the first evaluation, (seeds,)
    best_value: np.ndarray  # (seeds,)

    @classmethod
    def start(cls, num_seeds: int) -> "_Position":
        return cls(
            0, 0, 0, 0.0, np.zeros((0, num_seeds)), np.zeros(num_seeds, int), np.full(num_seeds, np.nan)
        )

    def to_meta(self) -> dict:
        meta = dataclasses.asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in meta.items()}

    @classmethod
    def from_meta(cls, meta: dict) -> "_Position":
        num_seeds = len(meta["best_epoch"])
        return cls(
            **{k: meta[k] for k in ("epoch", "batch", "step", "seconds")},
            history=np.array(meta["history"], float).reshape(-1, num_seeds),
            best_epoch=np.array(meta["best_epoch"], int),
            best_value=np.array(meta["best_value"], float),
        )

    def stopped_seeds(self, patience: int) -> np.ndarray:
        """Which seeds have gone `patience` epochs without improving."""
        if patience == 0:
            return np.zeros(len(self.best_epoch), bool)
        return self.epoch - self.best_epoch >= patience

    def finished(self, patience: int) -> bool:
        return bool(self.stopped_seeds(patience).all())

    def finish_epoch(self, value: np.ndarray, higher_is_better: bool, patience: int) -> np.ndarray:
        """Records a dev metric; returns which seeds have a new best epoch."""
        value = np.asarray(value, float)
        running = ~self.stopped_seeds(patience)
        with np.errstate(invalid="ignore"):
            ahead = value > self.best_value if higher_is_better else value < self.best_value
        better = running & (ahead | np.isnan(self.best_value)) & ~np.isnan(value)
        self.epoch += 1
        self.batch = 0
        self.history = np.concatenate([self.history, value[None]])
        self.best_epoch = np.where(better, self.epoch, self.best_epoch)
        self.best_value = np.where(better, value, self.best_value)
        return better


class _Keys(NamedTuple):
    """Independent streams of each seed, (seeds,)."""

    init: Key[Array, " seeds"]
    train: Key[Array, " seeds"]
    carry: Key[Array, " seeds"]
    evaluate: Key[Array, " seeds"]


def evaluation_keys(seeds: tuple[int, ...]) -> Key[Array, " seeds"]:
    """Returns the keys with which `fit` evaluates these seeds, (seeds,)."""
    return _keys(seeds).evaluate


def _keys(seeds: tuple[int, ...]) -> _Keys:
    roots = jnp.stack([jax.random.key(seed) for seed in seeds])
    return _Keys(*(jax.vmap(jax.random.fold_in, (0, None))(roots, i) for i in range(len(_Keys._fields))))


def _for_epoch(keys: Key[Array, " seeds"], epoch: int) -> Key[Array, " seeds"]:
    return jax.vmap(jax.random.fold_in, (0, None))(keys, epoch)


def _make_step(
    task: Task, optimizer: optax.GradientTransformation, parallel: Parallel
) -> Callable[..., TrainState]:
    """Compiles one update of all seeds; the old state's memory is given to the new one."""
    axis_name = parallel.axis_name

    def update(state, batch, key, index, learning_rate, stage, averaged):
        keys = _example_keys(jax.random.fold_in(key, index), batch, axis_name)
        gradient = jax.value_and_grad(task.loss, has_aux=True)
        (loss, (carry, sums)), grads = gradient(state.params, state.carry, batch, keys, stage, axis_name)
        grads, sums = mean_over(grads, axis_name), sum_over(sums, axis_name)
        # One sum is finite if all are; what is not finite changes nothing but the count.
        fine = jnp.isfinite(mean_over(loss, axis_name)) & jnp.isfinite(optax.global_norm(grads))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(lambda p, u: p - learning_rate.astype(p.dtype) * u, state.params, updates)
        average = None if state.average is None else average_update(state.average, params, averaged)
        sums = jax.tree.map(jnp.add, state.sums, sums)
        in_a_row, ever = state.skipped
        skipped = jnp.stack([jnp.where(fine, 0, in_a_row + 1), ever + ~fine])
        new = TrainState(params, opt_state, carry, sums, average, skipped)
        return where_each(fine, new, state._replace(skipped=skipped))

    return parallel.compile(
        jax.vmap(update, in_axes=(0, task.batch_axis, 0, None, 0, 0, 0)),
        in_specs=(LAYOUT, batch_spec(task.batch_axis), PER_SEED, P(), PER_SEED, PER_SEED, PER_SEED),
        out_specs=LAYOUT,
    )


def _example_keys(key: Key[Array, ""], batch: PyTree, axis_name: str | None = None) -> Key[Array, " batch"]:
    """One key per example, made from its number in the whole batch, wherever the example is."""
    examples = own_examples(jax.tree.leaves(batch)[0].shape[0], axis_name)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, examples)


def _place(parallel: Parallel, state: TrainState) -> TrainState:
    return TrainState(*(parallel.place(part, spec) for part, spec in zip(state, LAYOUT, strict=True)))


def _gather(parallel: Parallel, state: TrainState) -> TrainState:
    return TrainState(*(parallel.gather(part, spec) for part, spec in zip(state, LAYOUT, strict=True)))


def _zero_sums(task: Task, params: PyTree, keys: _Keys) -> Sums:
    batch = next(iter(task.train_batches(0)))
    carry = jax.eval_shape(jax.vmap(task.initial_carry), params, keys.carry)

    def loss(params, carry, batch, key, stage):
        return task.loss(params, carry, batch, _example_keys(key, batch), stage)

    loss = jax.vmap(loss, in_axes=(0, 0, task.batch_axis, 0, 0))
    _, (_, sums) = jax.eval_shape(loss, params, carry, batch, keys.train, task.stage(0))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)


def _select_seeds(better: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(better.reshape((-1,) + (1,) * (n.ndim - 1)), n, o), new, old)


def _record(task: Task, where: _Position, split: str, metrics: Metrics, rates: Array) -> dict:
    """One line of metrics.jsonl: a number for one seed, a list for several."""
    values = {f"{split}_{name.removeprefix(split + '_')}": value for name, value in metrics.items()}
    values["learning_rate"] = np.asarray(rates, float)
    plain = {name: value.tolist() if len(value) > 1 else float(value[0]) for name, value in values.items()}
    # Inside an epoch `epoch` is a fraction, at its end the number of epochs finished.
    epoch = where.epoch + where.batch / task.num_batches
    examples = where.step * task.examples_per_batch
    return {"step": where.step, "epoch": round(epoch, 4), "examples": examples, "split": split, **plain}


def _epoch_line(task: Task, where: _Position, epochs: int, train: Metrics, dev: Metrics, rates) -> str:
    numbers = [f"train_{task.headline} {np.mean(train[task.headline]):.4g}"]
    numbers += [f"{name} {np.mean(value):.4g}" for name, value in dev.items()]
    return f"epoch {where.epoch}/{epochs}  {'  '.join(numbers)}  lr {float(np.mean(np.asarray(rates))):.3g}"


@contextlib.contextmanager
def _interruptions() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C and SIGTERM into a question the loop can ask; a second Ctrl-C interrupts at once."""
    received: list[int] = []

    def handler(number, frame):
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    try:
        previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are somebody else's business
        previous = {}
    try:
        yield lambda: bool(received)
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
