"""Break small runs of every experiment at seeded places, and check what comes of it.

    python -m benchmarks.faults --experiment ptb,sst --kinds kill,damage --count 50

After a kill, a signal or a full disk, the same command has to give the same settings, metrics,
results, pictures and arrays. Everything else has to be refused in one line, or to change no answer.
"""

import collections
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks import report
from benchmarks.faults.forked import Ended, contents, differences, run
from benchmarks.faults.small_runs import NAMES, command, shrink_generated_data
from dynskip_jax.config import Count, Seed, call
from dynskip_jax.failures import run_main

_STOPPING = (
    signal.SIGKILL,
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
)
_ABSURD = (
    "0",
    "-1",
    "1" + "0" * 9,
    "9" * 400,
    "1e999",
    "nan",
    "",
    " ",
    "x" * 10**5,
    "../..",
    "\x1b[2J",
)
_MOST_SECONDS = 20
_RESULTS = ("settings", "result", "checkpoint")


class Whole(NamedTuple):
    """An experiment's command without `--run-dir`, and its runs and answers without faults.

    `longer` and `other` have one more epoch and another seed.
    """

    arguments: list[str]
    work: Path
    folder: Path
    longer: Path
    other: Path
    ended: Ended | None = None
    answer: str = ""

    def copy(self) -> Path:
        """Return a copy of `folder`, to be damaged."""
        shutil.rmtree(self.work / "copy", ignore_errors=True)
        return shutil.copytree(self.folder, self.work / "copy")

    def train(self, folder: Path, *more: str, **options: Any) -> Ended:
        """Run the command in a folder."""
        arguments = [*self.arguments, *more, "--run-dir", str(folder)]
        return run(arguments, self.work / "streams", below=folder, **options)

    def explain(self, folder: Path) -> Ended:
        """Run `explain`, which reads every file of a run except its metrics."""
        return run([self.arguments[0], "explain", "--run-dir", str(folder)], self.work / "streams")


def prepare(name: str, work: Path) -> Whole:
    """Run an experiment without faults, also with another seed and with one more epoch."""
    work = work / name
    whole = Whole(command(name, work), work, work / "folder", work / "longer", work / "other")
    # The last run finds its programs compiled, as those that are killed do.
    # Three runs without a fault, with which the broken ones are compared.
    for each, more in (("other", ("--seed", "1")), ("longer", ("--epochs", "4")), ("folder", ())):
        ended = whole.train(work / each, *more)
        if ended.status:
            raise SystemExit(f"{name} fails without any fault: {ended.err}")
    # The answer of a copy, because it names its folder.
    return whole._replace(ended=ended, answer=whole.explain(whole.copy()).out)


def kill(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Stop a run at a moment or an operation, or fill its disk; then give the command again."""
    folder = whole.work / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    if draw.random() < 0.5:
        number = draw.choice(_STOPPING)
        what = signal.Signals(number).name
        options = {"at": (draw.random() * whole.ended.seconds, number)}
    else:
        fault = draw.choice(("kill", "kill", "full"))
        what = {"kill": "SIGKILL at a write", "full": "disk full"}[fault]
        options = {"operation": (draw.randrange(whole.ended.operations), fault)}
    ended = whole.train(folder, **options)
    again = whole.train(folder)
    problem = ended.problem() or again.problem()
    if not problem and again.status:
        problem = again.err
    return what, problem or differences(folder, contents(whole.folder))


def damage(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Damage a file of a run: ask for its answer, or go on if it has no result."""
    folder = whole.copy()
    resumed = draw.random() < 0.3
    if resumed:
        (folder / "result.json").unlink()
        shutil.rmtree(folder / "plots")
    # The lock is empty, and belongs to no run.
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    path = draw.choice(paths)
    kind = draw.choice(("bit flipped", "truncated", "deleted", "swapped"))
    data = bytearray(path.read_bytes())
    if kind == "deleted" or not data:
        path.unlink()
    elif kind == "bit flipped":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    elif kind == "truncated":
        path.write_bytes(data[: draw.choice((0, len(data) // 2, len(data) - 1))])
    else:
        other = draw.choice(paths)
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
    ended = whole.train(folder) if resumed else whole.explain(folder)
    problem = ended.problem()
    if not problem and not ended.status and resumed:
        problem = differences(folder, contents(whole.folder), *_RESULTS)
    elif not problem and not ended.status and ended.out != whole.answer:
        problem = "another answer"
    what = f"{kind}, resumed" if resumed else kind
    return f"{what}: {'refused' if ended.status else 'same'}", problem


def mixed(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Give a run files of another run or time, or lose them, and let it grow by an epoch."""
    kind, source = draw.choice((("another run", whole.other), ("another time", whole.longer)))
    folder = whole.copy()
    names = ("config.json", "result.json", "metrics.jsonl", "checkpoints", "vocabulary.json")
    names = [name for name in names if (folder / name).exists()]
    # Some files, but not all: then it would be a whole run.
    for name in draw.sample(names, draw.randint(1, len(names) - 1)):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()
        is_replaced = draw.random() < 0.7
        if is_replaced and (source / name).is_dir():
            shutil.copytree(source / name, target)
        elif is_replaced:
            shutil.copy(source / name, target)
    ended = whole.train(folder, "--epochs", "4")
    problem = ended.problem()
    if not problem and not ended.status:
        problem = differences(folder, contents(whole.longer), *_RESULTS)
    return f"{kind}: {'refused' if ended.status else 'as one run'}", problem


def hostile(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Put a link, pipe, device, huge file or number into a run, and read it or let it grow."""
    folder = whole.copy()
    victim = whole.work / "victim"
    victim.write_text("precious")
    kind = draw.choice(("link", "pipe", "device", "huge file", "huge number"))
    if kind == "huge number":
        path = folder / draw.choice(("config.json", "result.json"))
        # Zeros behind a number that the folder has.
        old = draw.choice(
            ('"seeds": 1', '"epochs": 3', '"features": 4', '"seed": 0', '"parameters": ')
        )
        huge = f"{old.rpartition(' ')[0]} 1{'0' * draw.choice((15, 400))}"
        path.write_text(path.read_text().replace(old, huge))
    else:
        path = draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
        if draw.random() < 0.3:  # where a file is written before it replaces another
            path = path.with_name(f"{path.name}.tmp")
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "huge file":
            with path.open("wb") as file:
                file.truncate(6 * 10**9)
        else:
            path.symlink_to(victim if kind == "link" else "/dev/zero")
    if draw.random() < 0.5:
        ended = whole.explain(folder)
    else:
        ended = whole.train(folder, "--epochs", "4")
    problem = ended.problem(most_seconds=_MOST_SECONDS)
    if victim.read_text() != "precious":
        problem = "a file outside was changed"
    return f"{kind}: {'refused' if ended.status else 'not needed'}", problem


def _change(path: Path, kind: str, other: Path, draw: random.Random) -> None:
    """Change a run's file, if it is there: a digit or line, another run's content, or none."""
    if not path.exists():
        return
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    line = draw.randrange(len(lines)) if lines else 0
    places = [place for place, symbol in enumerate(text) if symbol.isdigit()]
    if kind == "removed":
        path.unlink()
    elif kind == "another run's":
        path.write_text((other / path.name).read_text())
    elif kind == "a line less":
        path.write_text("".join(lines[:line] + lines[line + 1 :]))
    elif kind == "a line twice":
        path.write_text("".join(lines[: line + 1] + lines[line:]))
    elif places:
        place = draw.choice(places)
        digit = str((int(text[place]) + draw.randint(1, 9)) % 10)
        path.write_text(text[:place] + digit + text[place + 1 :])


_CHANGES = ("a digit", "a digit", "a line less", "a line twice", "another run's", "removed")


def edited(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Change a file of a run while it trains, or remove or replace its folder.

    It ends as without, or refuses. What is changed after its last look is refused by the next
    command.
    """
    folder = whole.work / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    names = [
        name
        for name in ("config.json", "metrics.jsonl", "vocabulary.json")
        if (whole.folder / name).exists()
    ]
    kind = draw.choice((*_CHANGES, "folder removed", "folder replaced"))
    name = draw.choice(names)
    # What the run draws must not depend on when it is changed.
    details = random.Random(draw.random())

    def change(at: Path) -> None:
        if kind.startswith("folder"):
            shutil.rmtree(at, ignore_errors=True)
            if kind == "folder replaced":
                shutil.copytree(whole.other, at)
        else:
            _change(at / name, kind, whole.other, details)

    ended = whole.train(folder, operation=(draw.randrange(whole.ended.operations), change))
    problem = ended.problem()
    outcome = "refused" if ended.status else "as without"
    if not problem and not ended.status:
        problem = differences(folder, contents(whole.folder))
        if problem and whole.explain(folder).status == 2:
            outcome = "refused when it is read"
            problem = ""
    what = kind if kind.startswith("folder") else f"{name}, {kind}"
    return f"{what}: {outcome}", problem


def borrowed(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Give a finished run other metrics, or change them; every command refuses them."""
    folder = whole.copy()
    kind = draw.choice((*_CHANGES, "another time's"))
    path = folder / "metrics.jsonl"
    if kind == "another time's":
        shutil.copy(whole.longer / path.name, path)
    else:
        _change(path, kind, whole.other, draw)
    how = draw.choice(("explain", "the same command", "more epochs"))
    if how == "explain":
        ended = whole.explain(folder)
    elif how == "more epochs":
        ended = whole.train(folder, "--epochs", "4")
    else:
        ended = whole.train(folder)
    problem = ended.problem(most_seconds=_MOST_SECONDS)
    if not problem and not ended.status:
        problem = "accepted"
    return f"{kind}, {how}", problem


def absurd(whole: Whole, draw: random.Random) -> tuple[str, str]:
    """Give a setting an absurd value; a run that it does not end has to stop when asked to."""
    folder = whole.work / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shown = run([*whole.arguments, "--print-config"], whole.work / "streams").out
    names = [line.split()[0].rpartition(".")[2] for line in shown.splitlines() if "." in line]
    given = f"--{draw.choice(names).replace('_', '-')}={draw.choice(_ABSURD)}"
    at = (_MOST_SECONDS, signal.SIGTERM)
    ended = whole.train(folder, given, at=at, seconds=_MOST_SECONDS)
    outcome = {0: "accepted", 2: "refused", 130: "stopped"}.get(ended.status, "failed")
    problem = ended.problem(most_seconds=2 * _MOST_SECONDS)
    return outcome, problem and f"{given[:60]}: {problem}"


KINDS = {each.__name__: each for each in (kill, damage, mixed, hostile, absurd, edited, borrowed)}


def inject(
    experiment: tuple[Literal[NAMES], ...] = NAMES,
    kinds: tuple[Literal[tuple(KINDS)], ...] = tuple(KINDS),
    count: Count = 1,
    seed: Seed = 0,
) -> None:
    """Break small runs of experiments at seeded places, and check what comes of it.

    Args:
        experiment: Names, separated by commas.
        kinds: Kinds of faults, separated by commas.
        count: Faults of each kind, in each experiment.
        seed: Of moments, places and bits.
    """
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "MPLBACKEND": "agg",
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    }
    for module in ("run", "trained", "models", "tasks", "analysis.plots"):
        importlib.import_module(f"dynskip_jax.{module}")
    shrink_generated_data()
    found: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as work:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{work}/compiled"
        for name in experiment:
            whole = prepare(name, Path(work))
            for kind in kinds:
                for number in range(count):
                    draw = random.Random(f"{seed} {name} {kind} {number}")
                    what, problem = KINDS[kind](whole, draw)
                    print(f"{name}, {kind} {number}, {what}: {problem or 'fine'}", flush=True)
                    found[kind, what, bool(problem)] += 1
    failed = sum(number for (*_, bad), number in found.items() if bad)
    outcomes = sorted({(kind, what) for kind, what, _ in found})
    rows = [(*each, f"{found[*each, False]}", f"{found[*each, True]}") for each in outcomes]
    table = report.markdown(("fault", "outcome", "as promised", "failed"), rows)
    print(table, f"{found.total()} faults, {failed} failed", sep="\n")
    sys.exit(failed > 0)


def main() -> None:
    """Run the command line."""
    call(inject, "python -m benchmarks.faults", sys.argv[1:])


if __name__ == "__main__":
    run_main(main)
