"""Check that each command of the accelerator plan parses, stops in time, and can be resumed."""

import json
from pathlib import Path

import pytest

from benchmarks import accelerator
from dynskip_jax.cli import read_training
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import find_experiment

COMMANDS = {f"experiments.{name}": find_experiment(name) for name in ("ptb", "number_prediction")}


def test_every_run_has_a_name_of_its_own_and_a_command_that_parses(tmp_path):
    assert len({run.name for run in accelerator.PLAN}) == len(accelerator.PLAN)
    for run in accelerator.PLAN[1:]:
        line = accelerator.command(run, accelerator.Flags(out=tmp_path, data=Path("DIR")))
        settings = read_training(COMMANDS[run.module], line[3:])[0].settings
        assert str(settings.run.run_dir) == str(tmp_path / run.name)
        assert ("--data" in line) == (run.module == "experiments.ptb")


def test_only_selects_by_beginnings(tmp_path):
    assert len(accelerator.chosen(accelerator.Flags(out=tmp_path, only="figure5"))) == 2
    with pytest.raises(UserError, match="nonesuch"):
        accelerator.chosen(accelerator.Flags(out=tmp_path, only="nonesuch"))


def test_status_follows_the_run_folder(tmp_path):
    run, flags = accelerator.PLAN[1], accelerator.Flags(out=tmp_path)
    assert accelerator.status(run, flags) == "not begun"
    folder = tmp_path / run.name
    folder.mkdir(parents=True)
    lines = [json.dumps({"epoch": epoch}) for epoch in (0.5, 1.25)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"epo')
    assert accelerator.status(run, flags) == "epoch 1.2"
    (folder / "result.json").write_text("{}")
    assert accelerator.status(run, flags) == "done"


@pytest.mark.slow
def test_a_run_stops_in_time_and_goes_on(tmp_path):
    tiny = "--dataset pydoc-topics --features 8 --batch-size 20 --num-steps 5 --epochs 12"
    run, flags = accelerator.Run("tiny", "experiments.ptb", tiny), accelerator.Flags(out=tmp_path, seeds=1)
    assert not accelerator.go_on(run, flags, 12.0)
    assert accelerator.status(run, flags) != "done"
    assert accelerator.go_on(run, flags, 300.0)
    assert accelerator.status(run, flags) == "done"
