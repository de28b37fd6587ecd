"""What all experiments share on the command line: common flags, errors of one line."""

import contextlib
import dataclasses
import errno
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import jax
import tyro

from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.devices.parallel import Parallel, make_parallel
from dynskip_jax.devices.processes import HEARTBEAT_SECONDS, Processes, connect
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.functional import parse_time_skip
from experiments.settings import CommonSettings

# Flags that may be left out; help shows the type alone, not `{None}|STR … (default: None)`.
Text = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Folder = Annotated[str | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
Address = Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")]
Whole = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Real = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # nothing more can be written
_TURNS = 4  # devices that take turns on a core of a CPU, roughly


@dataclasses.dataclass(frozen=True)
class CommonFlags:
    """Flags every experiment has; None means: as the preset says."""

    model: Text = None
    """lstm (no skip over time), fixed:k, attention:k, content:k (attention by content), dynamic:k, skip_rnn
    or lstm_jump; k is how far back a skip may reach."""
    compare: Text = None
    """Several models, separated by commas, trained one after another into one table."""
    preset: Text = None
    """A named set of settings; flags given beside it win."""
    data: Folder = None
    """Folder of the data."""
    run_dir: Folder = None
    """Run folder; the same command with the same folder resumes. Default: runs/<task>/<model>-<time>."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """How many seeds to train together, in one program."""
    epochs: Whole = None
    """Passes over the training data."""
    batch_size: Whole = None
    """Sequences per training step."""
    learning_rate: Real = None
    """Initial learning rate."""
    features: Whole = None
    """Size of every layer's state."""
    mix: Text = None
    """λ, the weight of the skipped-to state against the previous one. Several values, separated by commas,
    are trained together, in one program."""
    max_skip: Text = None
    """Values of K up to the model's own, separated by commas, to be trained together (through the policy)."""
    transition: Text = None
    """How a cell turns input and state into the new state: lstm, peephole, full_gate, plstm, ulstm, gru, rhn
    or rhn:L (L layers deep)."""
    depth_skip: Text = None
    """What a layer receives from the one two below: gates, internal, gated_internal, output or gated_output;
    or highway, from the one below."""
    agent_features: Whole = None
    """Hidden units of the agent."""
    agent_input: Text = None
    """What the agent sees beside the input: previous (h of the step before) or mean (of the last K)."""
    empty_slots: Text = None
    """Before K steps have passed: initial (the initial state may be chosen) or masked (it may not)."""
    reward: Text = None
    """What the agent is rewarded with: log_likelihood or probability of the truth, or correct (±1)."""
    rl_coef: Real = None
    """Weight of the agent's loss."""
    entropy_coef: Real = None
    """Weight of the entropy in the agent's objective (the paper's is 1)."""
    entropy_coef_final: Real = None
    """That weight in the last epoch, reached linearly; by default it stays."""
    entropy: Text = None
    """sampled (inside the return, as in the paper) or exact (of each step's distribution)."""
    baseline: Text = None
    """Subtracted from the return: none, batch (mean of the other examples), rollouts (of the others of the
    same example), moving_average (of earlier batches) or learned (a critic)."""
    estimator: Text = None
    """reinforce, or vimco: for the averaged prediction of all rollouts."""
    relaxation: Text = None
    """How choices are relaxed at first: none, soft, gumbel_softmax, straight_through or reinmax."""
    relaxed_epochs: Whole = None
    """For how many epochs they are."""
    relaxed_entropy_coef: Real = None
    """Weight of the exact entropy in these epochs; below 0 it makes the policy certain."""
    relaxed_entropy_coef_final: Real = None
    """That weight in the last of them, reached linearly."""
    temperature: Real = None
    """Of relaxed choices."""
    temperature_final: Real = None
    """That temperature in the last relaxed epoch, reached geometrically; by default it stays."""
    evaluation_mode: Text = None
    """How the agent chooses on dev: greedy or sample."""
    patience: Whole = None
    """Stop after this many epochs without a better dev result; 0 never stops."""
    precision: Text = None
    """f32, or bf16: matrices are multiplied in bfloat16; sums, states, losses and parameters stay float32."""
    devices: Whole = None
    """Devices to train on; if not given 1, or as many parts of a CPU as can share the seeds. Each has seeds
    of its own if their number divides that of the seeds, else a share of every batch. Results are the same up
    to rounding; a run may be resumed with another number."""
    parallel: str = "jit"
    """How several devices are driven: jit (one program over a mesh) or pmap (one replica per device)."""
    coordinator: Address = None
    """Where process 0 is found, if several processes train together with all their devices; each of them is
    given the same command but for --process-id. TPU pods, Slurm and Open MPI know all three: auto."""
    process_id: Whole = None
    """Number of this process, from 0; process 0 writes the run folder and prints."""
    process_count: Whole = None
    """How many processes there are."""
    heartbeat_seconds: int = HEARTBEAT_SECONDS
    """A process that has not been heard of for so long is lost: the others end."""


def parse(flags: type, name: str, description: str) -> Any:
    """Reads the command line of `python -m experiments.<name>` into a dataclass of flags."""
    return tyro.cli(flags, prog=f"python -m experiments.{name}", description=description)


def models(flags: CommonFlags, default: str) -> tuple[str, ...]:
    """Returns the models asked for, checked.

    Raises:
        UserError: both `--model` and `--compare` were given, or a model is unknown or named twice.
    """
    if flags.model is not None and flags.compare is not None:
        raise UserError("give either --model or --compare, not both")
    given = flags.compare if flags.compare is not None else flags.model
    names = tuple(name.strip() for name in (default if given is None else given).split(","))
    if flags.compare is None and len(names) > 1:
        raise UserError(f"--model takes one model; use --compare {','.join(names)} for several")
    for name in names:
        parse_time_skip(name)
        if names.count(name) > 1:
            raise UserError(f"--compare names {name} twice: leave one out")
    return names


def join(flags: CommonFlags) -> Processes:
    """Joins the processes that the flags name; JAX must not have been asked for its devices before.

    Every process keeps the memory it frees. A process alone also keeps its compiled programs for the next
    start. Several do not: the first one would find them in its folder where others compile, and on GPUs they
    compile together.

    Raises:
        UserError: the flags make no sense together, or the processes do not find each other.
    """
    given = (flags.coordinator, flags.process_id, flags.process_count)
    if given != (None, None, None) and flags.parallel == "pmap":
        raise UserError("--parallel pmap drives one process: leave it out, or --coordinator")
    keep_freed_memory()
    processes = connect(*given, heartbeat_seconds=flags.heartbeat_seconds)
    if processes.count == 1:
        keep_compiled_programs()
        swept = [given.count(",") + 1 for given in (flags.mix, flags.max_skip) if given]
        _make_cpu_devices(max(_num_cores(), flags.seeds * math.prod(swept)))
    return processes


def parallel(
    flags: CommonFlags, settings: CommonSettings, models: Sequence[str], processes: Processes
) -> Parallel:
    """Returns the devices asked for and how they are driven; on a CPU, by default, its cores share the seeds.

    Raises:
        UserError: there are not so many, or they cannot share the batch.
    """
    if (settings.mixes or settings.max_skips) and not any(settings.skip(m).has_agent for m in models):
        raise UserError(
            f"{', '.join(models)} has neither λ nor K: a sweep over --mix or --max-skip takes a model that "
            "chooses, such as dynamic:10"
        )
    # All models are driven alike, also where a sweep makes more of one than of another.
    num_seeds = math.gcd(*(len(settings.all_seeds(model)) for model in models))
    devices = flags.devices
    if devices is None and processes.count == 1 and jax.default_backend() == "cpu":
        # Few seeds for each: products of several at once are slow on a CPU. Where there are more devices than
        # cores, they take turns; a few turns also even out that some are finished before others.
        fitting = [n for n in range(1, jax.device_count() + 1) if num_seeds % n == 0]
        devices = min(fitting, key=lambda n: abs(n - _TURNS * _num_cores()))
    return make_parallel(
        devices,
        flags.parallel,
        num_seeds=num_seeds,
        batch_size=settings.batch_size,
        processes=processes,
    )


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_cpu_devices(count: int) -> None:
    """Lets JAX see the CPU as several devices, each to have seeds of its own: small products share badly.

    Where the user says how many there are (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`), that is left as it is.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, in a notebook
            jax.config.update("jax_num_cpu_devices", count)


def silent(line: str) -> None:
    """Announces nothing: what processes other than the first have to say."""


def devices_line(chosen: Parallel) -> str:
    """Says which devices train, as in `2 of 8 cpu devices`."""
    platform = chosen.devices[0].platform
    line = f"{len(chosen.devices)} of {jax.device_count()} {platform} device(s)"
    return line if chosen.processes.count == 1 else f"{line}, {chosen.processes.count} processes"


def run_main(main: Callable[[], None]) -> None:
    """Runs a command: what the user can put right is one line on standard error and exit status 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave(2)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave(130)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(1)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            where = f" ({error.filename})" if error.filename else ""
            print(
                f"error: {error.strerror}{where}: make room, then the same command goes on", file=sys.stderr
            )
            _leave(2)
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        _leave(1)


def _leave(status: int) -> NoReturn:
    """Ends this process; one of several at once, where JAX would first wait for the others for minutes."""
    if jax.distributed.is_initialized():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
