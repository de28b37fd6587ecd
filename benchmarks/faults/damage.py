"""Damage the files of a run folder, and check that the damage is refused, repaired or harmless."""

import contextlib
import io
import itertools
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.comparison import contents, differences, outcome_of
from benchmarks.faults.forked import exit_status, fork, run_command, train
from benchmarks.faults.kills import Reference
from benchmarks.faults.outcomes import Outcome
from benchmarks.faults.small_runs import SMALL_RUNS

REGIONS = 8  # parts of each file; one bit is flipped in each part
REFUSED, SAME, REPAIRED = "refused in one line", "same answer", "same result"


class Damage(NamedTuple):
    """A damage to a file.

    Attributes:
        kind: Name in the table.
        what: Details that are needed to repeat it.
        apply: Function that damages the file at a path.
    """

    kind: str
    what: str
    apply: Callable[[Path], None]


def damages(path: Path, draw: random.Random, others: list[Path]) -> Iterator[Damage]:
    """Yield each damage to a file: a flipped bit in each region, truncations, a deletion, a swap.

    Args:
        path: File to damage; it is only read here.
        draw: Random generator of places and bits.
        others: Files to swap contents with.
    """
    size = path.stat().st_size
    bounds = [size * part // REGIONS for part in range(REGIONS + 1)]
    for start, end in itertools.pairwise(bounds):
        if end > start:
            place, bit = draw.randrange(start, end), draw.randrange(8)
            yield Damage("a bit flipped", f"bit {bit} of byte {place}", _flip(place, bit))
    for length in sorted({0, size // 2, max(0, size - 1)}):
        if length < size:
            yield Damage("truncated", f"to {length} of {size} bytes", _truncate(length))
    yield Damage("deleted", "", Path.unlink)
    if others:
        other = draw.choice(others)
        yield Damage("swapped with another file", str(other.name), lambda path: _swap(path, other))


def damaged(whole: Reference, work: Path, seed: int, share: float = 1.0) -> Iterator[Outcome]:
    """Yield the outcome of `explain` after each damage to each file of a finished run.

    Args:
        whole: Run without faults.
        work: Folder for copies of the run.
        seed: Seed of places and bits.
        share: Fraction of all damages that is tried, sampled at random.
    """
    draw = random.Random(f"{seed} {whole.name} damage")
    folder = work / whole.name / "damaged"
    names = _files(whole.folder)
    expected = _explained(whole, [(whole.folder, None)], work)[0]
    if expected[0]:
        raise RuntimeError(f"explain fails without any damage: {expected[2]}")
    for name in names:
        others = [folder / other for other in names if other != name]
        chosen = [each for each in damages(whole.folder / name, draw, others) if draw.random() < share]
        tasks = [(folder / name, each) for each in chosen]
        for each, (status, out, err) in zip(chosen, _explained(whole, tasks, work), strict=True):
            details = f"{name}: {each.what}"
            outcome = Outcome(f"{each.kind}, {_group(name)}", whole.name, details=details)
            if status == 0 and out == expected[1] and not err:
                yield outcome._replace(result=SAME)
            elif status == 2 and err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1000:
                yield outcome._replace(result=REFUSED)
            else:
                problem = "another answer" if status == 0 else f"status {status}: {err[-500:]}"
                yield outcome._replace(problem=problem)


def damaged_and_resumed(whole: Reference, work: Path, count: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of damages to a run without a result, which the same command then resumes.

    Args:
        whole: Finished run without faults; result and pictures are deleted from its copies.
        work: Folder for copies of the run.
        count: Number of damages, sampled from all.
        seed: Seed of the places, the bits and the sample of damages.
    """
    draw = random.Random(f"{seed} {whole.name} resumed")
    folder = work / whole.name / "damaged"
    names = [name for name in _files(whole.folder) if name.name != "result.json"]
    everything = [
        (name, each)
        for name in names
        for each in damages(whole.folder / name, draw, [folder / other for other in names if other != name])
    ]
    for name, each in draw.sample(everything, min(count, len(everything))):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole.folder, folder)
        (folder / "result.json").unlink()
        shutil.rmtree(folder / "plots")
        each.apply(folder / name)
        ended = train(whole.arguments, folder, work / "streams")
        errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        outcome = Outcome(f"{each.kind}, {_group(name)}, resumed", whole.name, details=f"{name}: {each.what}")
        if ended.status == 2 and len(errors) == 1 and not ended.has_traceback:
            yield outcome._replace(result=REFUSED)
            continue
        problem = f"status {ended.status}: {ended.err[-500:]}" if ended.status else ""
        if not problem and outcome_of(contents(folder)) != outcome_of(whole.contents):
            problem = f"it differs in {', '.join(differences(folder, whole.contents))}"
        yield outcome._replace(problem=problem, result=REPAIRED)


def _files(folder: Path) -> list[Path]:
    """Return the files of a run, except pictures and locks, as paths relative to its folder."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [name for name in names if name.parts[0] != "plots" and name.name not in (".lock", "lock")]


def _explained(
    whole: Reference, tasks: list[tuple[Path, Damage | None]], work: Path
) -> list[tuple[int, str, str]]:
    """Return status, output and errors of `explain` after each damage to a fresh copy of the run.

    Args:
        whole: Run without faults.
        tasks: File in the copy, and the damage to it; None for no damage.
        work: Folder for copies of the run.
    """
    answers = work / "streams" / "answers"
    shutil.rmtree(answers, ignore_errors=True)
    answers.mkdir(parents=True)
    text = SMALL_RUNS[whole.name].text
    flags = [] if text is None else ["--text", text]

    def explain_all(_: int) -> None:
        for number, (path, damage) in enumerate(tasks):
            folder = work / whole.name / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole.folder, folder)
            if damage is not None:
                damage.apply(path)
            out, err, status = io.StringIO(), io.StringIO(), 0
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    run_command([whole.name, "explain", "--run-dir", str(folder), *flags])
                except SystemExit as stop:
                    status = exit_status(stop)
                except Exception as error:
                    status = 1
                    print(f"Traceback: {error!r}", file=sys.stderr)
            for name, content in (
                ("out", out.getvalue()),
                ("err", err.getvalue()),
                ("status", str(status)),
            ):
                (answers / f"{number}.{name}").write_text(content, encoding="utf-8", errors="replace")

    ended = fork(explain_all, work / "streams")
    found = []
    for number in range(len(tasks)):
        if not (answers / f"{number}.status").exists():  # the process crashed
            found.append((ended.status or 1, "", f"no answer: {ended.err[-300:]}"))
            continue
        texts = [(answers / f"{number}.{name}").read_text(encoding="utf-8") for name in ("out", "err")]
        found.append((int((answers / f"{number}.status").read_text()), *texts))
    return found


def _group(name: Path) -> str:
    """Return the name of a file's group in the table."""
    if name.parts[0] != "checkpoints":
        return name.name
    return "checkpoint, description" if name.parts[2] == "document" else "checkpoint, arrays and metadata"


def _flip(place: int, bit: int) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place] ^= 1 << bit
        path.write_bytes(data)

    return apply


def _truncate(length: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:length])


def _swap(path: Path, other: Path) -> None:
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)
