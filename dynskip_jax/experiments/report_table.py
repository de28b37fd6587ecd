"""What the tables of a report consist of, and how their cells are written."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dynskip_jax.analysis.intervals import Interval


class Row(NamedTuple):
    """A model of a run.

    Attributes:
        name: as tables have it.
        seeds: with which it was trained.
        metrics: of each its values, (seeds,).
        data: what identifies the data it was trained on.
        parameters: how many it has.
        model: its own name, as in `dynamic:5`.
        label: the settings that its name says beside the model.
        folder: the short name of its folder; empty where there is one folder alone.
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
        """The values of a metric."""
        return dict(zip(self.seeds, self.metrics.get(metric, ()), strict=False))


class Line(NamedTuple):
    """A row of a table, of one metric.

    Attributes:
        row: whose.
        metric: which, as in result.json.
        heading: what people call it.
        form: how its numbers are written, as in `.2%`.
        own: mean and interval of it.
        difference: to the baseline, over the seeds that both have; None for the baseline itself, and where
            there is none.
    """

    row: Row
    metric: str
    heading: str
    form: str
    own: Interval
    difference: Interval | None


def tables(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Returns the lines of each table, by its title: those of one metric on one corpus.

    Where corpora have one name and differ, as one with word vectors and without, their titles end in the
    first digits of their fingerprints.
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
    """Returns those of a table's columns, the model's name and the `cells`."""
    points = " (points)" if lines[0].form.endswith("%") else ""
    return ["model", "seeds", "mean ± sd", "95 % interval", f"difference{points}", "95 % interval", "pairs"]


def cells(line: Line) -> list[str]:
    """Returns seeds, mean ± sd, its interval, the difference, its interval, and how many pairs that is of.

    A difference of percentages is in points.
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
