"""Check that each command of the accelerator plan parses, stops in time, and can be resumed."""

from pathlib import Path

import pytest
from flags import flags_of

from benchmarks import accelerator


def test_every_run_has_a_name_of_its_own_and_a_command_that_parses(tmp_path):
    assert len({run.name for run in accelerator.PLAN}) == len(accelerator.PLAN)
    for run in accelerator.PLAN:
        line = accelerator.command(run, accelerator.Flags(out=tmp_path, data=Path("DIR")))
        settings = flags_of(run.experiment, line[3:]).settings
        assert str(settings.run.run_dir) == str(tmp_path / run.name)
        assert ("--data" in line) == (run.experiment == "ptb")


@pytest.mark.slow
def test_a_run_stops_in_time_and_goes_on(tmp_path):
    tiny = "--dataset pydoc-topics --features 8 --batch-size 20 --num-steps 5 --epochs 12"
    run, flags = accelerator.Run("tiny", "ptb", tiny), accelerator.Flags(out=tmp_path, seeds=1)
    assert not accelerator.go_on(run, flags, 12.0)
    assert accelerator.status(run, flags) != "done"
    assert accelerator.go_on(run, flags, 300.0)
    assert accelerator.status(run, flags) == "done"
