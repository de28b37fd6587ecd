"""Collect the outcomes of faults, and format them as a table."""

from collections.abc import Iterable
from typing import NamedTuple


class Outcome(NamedTuple):
    """The outcome of one fault.

    Attributes:
        fault: Name of the fault, a row of the table.
        what: Experiment in which it was injected, such as `ptb`.
        problem: Description of the failure; empty if the run survived.
        result: How the run survived, such as `refused in one line`.
        details: Seeded choices that are needed to repeat the fault.
    """

    fault: str
    what: str
    problem: str = ""
    result: str = ""
    details: str = ""


def markdown(outcomes: Iterable[Outcome]) -> str:
    """Return a Markdown table with the counts of each fault: tried, survived, failed, and the results."""
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
