"""Check that each command of the accelerator plan parses, stops in time, and can be resumed."""

import json
from pathlib import Path

import pytest

from benchmarks import accelerator
from dynskip_jax.cli import read_training
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import find_experiment

COMMANDS = {f"experiments.{name}": find_experiment(name) for name in ("ptb", "number_prediction")}


def flags(tmp_path, **options):
    return accelerator.Flags(out=tmp_path, **{"size": "tiny"} | options)


def test_every_run_has_a_name_of_its_own_and_a_command_that_parses(tmp_path):
    assert len({run.name for run in accelerator.PLAN}) == len(accelerator.PLAN)
    for run in accelerator.PLAN[1:]:
        for size in ("full", "tiny"):
            options = flags(tmp_path, size=size, data=Path("DIR"))
            line = accelerator.command(run, options)
            settings = read_training(COMMANDS[run.module], line[3:])[0].settings
            assert str(settings.run.run_dir) == str(accelerator.folder(run, options))
            assert ("--data" in line) == (run.module == "experiments.ptb" and size == "full")


def test_only_selects_by_beginnings(tmp_path):
    assert len(accelerator.chosen(flags(tmp_path, only="figure5"))) == 2
    with pytest.raises(UserError, match="nonesuch"):
        accelerator.chosen(flags(tmp_path, only="nonesuch"))


def test_status_follows_the_run_folder(tmp_path):
    run, chosen = accelerator.PLAN[1], flags(tmp_path)
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
    (run,) = accelerator.chosen(flags(tmp_path, only="table3-lstm"))
    longer = accelerator.TINY["experiments.ptb"] + " --batch-size 20 --num-steps 5 --epochs 12"
    monkeypatch.setitem(accelerator.TINY, "experiments.ptb", longer)
    chosen = flags(tmp_path)
    assert not accelerator.go_on(run, chosen, 12.0)
    assert accelerator.status(run, chosen) != "done"
    assert accelerator.go_on(run, chosen, 300.0)
    assert accelerator.status(run, chosen) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("run", accelerator.PLAN, ids=lambda run: run.name)
def test_every_command_runs(run, tmp_path):
    assert accelerator.go_on(run, flags(tmp_path), 500.0)
