"""Check the table of a run: numbers stay whole in narrow terminals, and published rows fit the corpus."""

import io
from typing import ClassVar

import pytest
from rich.console import Console

from dynskip_jax.experiments import table
from dynskip_jax.experiments.conll2003 import CoNLL2003
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.settings import Settings


def summary(*seeds):
    return {"mean": sum(seeds) / len(seeds), "std": 0.1, "per_seed": list(seeds)}


class ShortOfRoom(CoNLL2003):
    """An experiment whose published rows have long names."""

    columns: ClassVar = {
        "dev_f1": ("dev", ".2f"),
        "test_f1": ("test", ".2f"),
        "test_f1_sampled": ("sampled", ".2f"),
    }

    def __init__(self):
        """Create the experiment without settings, which its table does not need."""

    def published(self, models, data):
        return [
            ("Somebody et al. 2015, random vectors, BiLSTM-CRF and features of spelling", {"test_f1": 84.26})
        ]

    def note(self, models, data):
        return ""


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_stay_whole(width, monkeypatch):
    console = Console(width=width, file=io.StringIO())
    monkeypatch.setattr(table, "wide_console", lambda: console)
    data = type("Data", (), {"name": "fixture", "sizes": {}})()
    metrics = {"dev_f1": summary(91.25, 90.75, 91.5), "test_f1": summary(84.5, 85.25, 84.75)}
    result = {"model": "dynamic:5", "wall_seconds": 4000, "parameters": 1_971_075, "metrics": metrics}
    table.print_table(ShortOfRoom(), [make_spec("dynamic:5", Settings())], data, [result])
    printed = console.file.getvalue()
    for whole in ("dynamic:5", "91.17 ± 0.10", "84.83 ± 0.10", "84.26", "1,971,075", "1:06:40"):
        assert whole in printed
    assert "sampled" not in printed  # no row has it


class Published(CoNLL2003):
    """An experiment with one published row, of a corpus of 100 sentences."""

    published_sizes: ClassVar = {"fixture": {"train": 100}}

    def __init__(self):
        """Create the experiment without settings, which its table does not need."""

    def published(self, models, data):
        return [("Somebody et al.", {"test_f1": 0.5})]

    def note(self, models, data):
        return "beside theirs"


@pytest.mark.parametrize("size", [100, 20])
def test_published_rows_stand_only_beside_results_on_their_corpus(size, monkeypatch):
    console = Console(width=120, file=io.StringIO())
    monkeypatch.setattr(table, "wide_console", lambda: console)
    data = type("Data", (), {"name": "fixture", "sizes": {"train": size}})()
    result = {"model": "lstm", "wall_seconds": 1, "parameters": 5, "metrics": {"test_f1": summary(0.5, 0.5)}}
    table.print_table(Published(), [make_spec("lstm", Settings())], data, [result])
    printed = console.file.getvalue()
    assert ("Somebody" in printed) == ("beside theirs" in printed) == (size == 100)
    assert ("train has 20 instead of 100" in printed) == (size == 20)
