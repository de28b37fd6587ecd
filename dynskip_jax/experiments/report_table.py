"""Group the lines of a report into tables, and format their cells."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dynskip_jax.analysis.statistics import Interval


class Row(NamedTuple):
    """The results of one model of a run.

    Attributes:
        name: Name in tables.
        seeds: Seeds of the model.
        metrics: Values of each metric, (seeds,).
        data: Name and fingerprint of the training data.
        parameters: Number of parameters.
        model: Name of the model, as in `dynamic:5`.
        label: Settings that `name` contains in addition to the model.
        folder: Short name of the run's folder; empty if there is only one folder.
    """

    name: str
    seeds: Sequence[int]
    metrics: Mapping[str, Sequence[float]]
    data: tuple[str, str]
    parameters: int
    model: str
    label: str
    folder: str

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the value of a metric for each seed; empty if the row lacks the metric."""
        return dict(zip(self.seeds, self.metrics.get(metric, ()), strict=False))


class Line(NamedTuple):
    """A line of a table: one metric of one row.

    Attributes:
        row: Row of the model.
        metric: Name of the metric in `result.json`.
        heading: Heading of the metric in tables.
        form: Format of its numbers, as in `.2%`.
        own: Mean of the metric and its interval.
        difference: Difference to the baseline over the seeds that both have, with its interval; None for the
            baseline itself, and without a baseline.
    """

    row: Row
    metric: str
    heading: str
    form: str
    own: Interval
    difference: Interval | None


def tables(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines of each table, by its title. A table is of one metric on one corpus.

    Corpora of the same name may differ, for example with and without word vectors. The titles of their tables
    end in the first digits of the fingerprint.
    """
    found: dict[tuple, list[Line]] = {}
    for line in lines:
        found.setdefault((line.metric, line.row.data), []).append(line)
    prints: dict[str, set[str]] = {}
    for _, (name, fingerprint) in found:
        prints.setdefault(name, set()).add(fingerprint)
    titles = {}
    for (metric, (name, fingerprint)), own in found.items():
        which = f", data {fingerprint[:8]}" if len(prints[name]) > 1 else ""
        titles[f"{own[0].heading} on {name} ({metric}){which}"] = own
    return titles


def headings(lines: Sequence[Line]) -> list[str]:
    """Return the headings of a table's columns: that of the model's name, and those of `cells`."""
    points = " (points)" if lines[0].form.endswith("%") else ""
    return ["model", "seeds", "mean ± sd", "95 % interval", f"difference{points}", "95 % interval", "pairs"]


def cells(line: Line) -> list[str]:
    """Return the cells of a line: seeds, mean ± sd, interval, difference, its interval, number of pairs.

    A difference of percentages is in percentage points.
    """
    own, other, form = line.own, line.difference, line.form
    spread = f"{own.mean:{form}} ± {own.sd:{form}}" if own.count > 1 else f"{own.mean:{form}}"
    texts = [str(own.count), spread, _ends(own, form)]
    if other is None or other.count == 0:
        return [*texts, "", "", ""]
    points = f"+{form}"
    if form.endswith("%"):
        points = f"+{form[:-1]}f"
        other = Interval(*(100 * number for number in other[:4]), other.count)
    return [*texts, f"{other.mean:{points}}", _ends(other, points), str(other.count)]


def _ends(interval: Interval, form: str) -> str:
    return f"{interval.low:{form}} to {interval.high:{form}}" if interval.count > 1 else ""
