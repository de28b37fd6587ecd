"""The benchmark runs at tiny shapes and writes what it measured."""

import json
import sys

from benchmarks import recurrence


def test_every_contestant_is_timed_in_every_round(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recurrence, "SHAPES", (recurrence.Shape(3, 2, 4, 5, 2, 0.5),))
    monkeypatch.setattr(sys, "argv", ["recurrence", "--rounds", "2", "--out", str(tmp_path / "times.json")])
    recurrence.main()
    rows = json.loads((tmp_path / "times.json").read_text())["rows"]
    assert [row["layer"] for row in rows][:5] == ["lstm", "fixed:2", "attention:2", "dynamic:2", "Flax RNN"]
    assert all(len(row["ms"]) == 2 and min(row["ms"]) > 0 for row in rows)
    assert "T=3 B=2 in=4 H=5" in capsys.readouterr().out
