"""What was tried, what survived, what failed, and the table of it."""

from collections.abc import Iterable
from typing import NamedTuple


class Outcome(NamedTuple):
    """What came of one fault.

    Attributes:
        fault: what was done, as a row of the table names it.
        what: to what it was done, as in `ptb`.
        problem: what is wrong afterwards; empty where it was survived.
        result: how it was survived, as in `refused in one line`.
        details: the seeded choice, to try it again.
    """

    fault: str
    what: str
    problem: str = ""
    result: str = ""
    details: str = ""


def markdown(outcomes: Iterable[Outcome]) -> str:
    """Return a table with a row for each fault: tried, survived, failed, and how it was survived."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.fault, []).append(outcome)
    lines = ["| fault | in | tried | survived | failed | how |", "| --- | --- | --- | --- | --- | --- |"]
    for fault, own in rows.items():
        failed = sum(bool(outcome.problem) for outcome in own)
        where = list(dict.fromkeys(outcome.what for outcome in own))
        counts: dict[str, int] = {}
        for outcome in own:
            if not outcome.problem:
                counts[outcome.result] = counts.get(outcome.result, 0) + 1
        how = ", ".join(f"{count} {result}" for result, count in counts.items())
        shown = ", ".join(where) if len(where) < 8 else f"{len(where)} experiments"
        lines.append(f"| {fault} | {shown} | {len(own)} | {len(own) - failed} | {failed} | {how} |")
    return "\n".join(lines) + "\n"
