"""Check that the benchmark of seeds computes ratios of wall times, and that its commands run."""

import json
import sys

import pytest

from benchmarks import seeds
from dynskip_jax.errors import UserError


def test_ratio_is_that_of_medians_and_the_first_runs_do_not_count(monkeypatch, tmp_path, capsys):
    asked = []
    times = {1: iter([99.0, 2.0, 3.0, 10.0]), 8: iter([99.0, 12.0, 18.0, 6.0])}

    def wall_time(model, count, flags, folder):
        asked.append((model, count, folder.name))
        return next(times[count])

    monkeypatch.setattr(seeds, "wall_time", wall_time)
    out = tmp_path / "seeds.json"
    monkeypatch.setattr(sys, "argv", ["seeds", "--models", "lstm", "--out", str(out)])
    seeds.main()
    found = json.loads(out.read_text())["models"]["lstm"]
    assert found == {"one": [2.0, 3.0, 10.0], "all": [12.0, 18.0, 6.0], "ratio": 12 / (8 * 3)}
    assert "0.50" in capsys.readouterr().out
    assert [count for _, count, _ in asked] == [1, 8] * 4
    assert len({name for *_, name in asked}) == 8  # a finished run folder would not be trained again


@pytest.mark.slow
def test_a_command_that_fails_is_said(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="unknown model 'gru'"):
        seeds.wall_time("gru", 1, seeds.Flags(train_examples=100), tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["seeds", "--repeats", "0"])
    with pytest.raises(UserError, match="--repeats must be at least 1"):
        seeds.main()


@pytest.mark.slow
def test_commands_run(monkeypatch, capsys):
    flags = ("--models", "lstm", "--seeds", "2", "--train-examples", "256", "--repeats", "1")
    monkeypatch.setattr(sys, "argv", ["seeds", *flags])
    seeds.main()
    assert "lstm" in capsys.readouterr().out
