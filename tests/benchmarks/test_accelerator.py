"""Check that each command of the accelerator plan runs at a tiny size, stops in time and can be resumed."""

import json
import sys

import pytest

from benchmarks import accelerator
from dynskip_jax.errors import UserError
from dynskip_jax.experiments import number_prediction, ptb
from dynskip_jax.experiments.command_line import read_flags, read_training, resolve_training


def flags(tmp_path, **options):
    return accelerator.Flags(out=str(tmp_path), **{"size": "tiny"} | options)


def test_every_run_has_a_name_of_its_own_and_a_command_that_parses(tmp_path):
    names = [run.name for run in accelerator.PLAN]
    assert len(set(names)) == len(names)
    full = flags(tmp_path, size="full", data="DIR")
    commands = {kind.name: kind for kind in (ptb.PTB, number_prediction.NumberPrediction)}
    for run in accelerator.PLAN:
        line = accelerator.command(run, full)
        given, _ = read_training(commands[run.experiment], line[3:])
        assert given["run_dir"] == str(accelerator.folder(run, full))
        this = commands[run.experiment]
        settings = resolve_training(this, given).settings
        assert settings.run.models("none") == (given["model"],)
        assert line[:2] == [sys.executable, "-m"]
        assert ("--data" in line) == (run.experiment == "ptb")
        tiny = accelerator.command(run, flags(tmp_path))
        assert len({part for part in tiny if part.startswith("--")}) == sum(p.startswith("--") for p in tiny)


def test_flags_of_the_script(monkeypatch):
    found = read_flags("", "", accelerator.Flags, ["--out", "there", "--minutes", "2.5", "--list"])
    assert found == accelerator.Flags(out="there", minutes=2.5, list=True)
    monkeypatch.setattr(sys, "argv", ["accelerator"])
    with pytest.raises(UserError, match="--out is needed"):
        accelerator.main()
    with pytest.raises(UserError, match="--minutes must be above 1, got 0"):
        read_flags("", "", accelerator.Flags, ["--out", "there", "--minutes", "0"])


def test_most_important_first(tmp_path):
    assert [run.name for run in accelerator.PLAN[:2]] == ["table3-dynamic-5", "table3-lstm"]
    assert [run.name for run in accelerator.chosen(flags(tmp_path, only="figure5"))] == [
        "figure5-K",
        "figure5-mix",
    ]
    with pytest.raises(UserError, match="nonesuch"):
        accelerator.chosen(flags(tmp_path, only="nonesuch"))


def test_status_follows_the_run_folder(tmp_path):
    run, chosen = accelerator.PLAN[0], flags(tmp_path)
    assert accelerator.status(run, chosen) == "not begun"
    folder = accelerator.folder(run, chosen)
    folder.mkdir(parents=True)
    lines = [json.dumps({"epoch": epoch}) for epoch in (0.5, 1.25)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"epo')
    assert accelerator.status(run, chosen) == "epoch 1.2"
    (folder / "result.json").write_text("{}")
    assert accelerator.status(run, chosen) == "done"


@pytest.mark.slow
def test_a_run_stops_in_time_and_goes_on(tmp_path, monkeypatch):
    run = next(run for run in accelerator.PLAN if run.name == "table3-lstm")
    long = {"ptb": (*accelerator.TINY["ptb"], "--batch-size", "20", "--num-steps", "5", "--epochs", "12")}
    monkeypatch.setattr(accelerator, "TINY", accelerator.TINY | long)
    chosen = flags(tmp_path)
    assert not accelerator.go_on(run, chosen, 12.0)
    assert accelerator.status(run, chosen) != "done"
    assert accelerator.go_on(run, chosen, 300.0)
    assert accelerator.status(run, chosen) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("run", accelerator.PLAN, ids=lambda run: run.name)
def test_every_command_runs(run, tmp_path):
    assert accelerator.go_on(run, flags(tmp_path), 500.0)


@pytest.mark.slow
def test_a_failed_run_says_which(tmp_path):
    bad = accelerator.PLAN[0]._replace(flags=("--model", "nonsense"))
    with pytest.raises(UserError, match=bad.name):
        accelerator.go_on(bad, flags(tmp_path), 100.0)
