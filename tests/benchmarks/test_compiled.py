"""Check what is read from a compiled program, and that every step compiles for TPUs."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks import compiled
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import NAMES as EXPERIMENTS
from dynskip_jax.experiment import find_experiment

PROGRAM = """
%condition (arg: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(35)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}
%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %slice.1 = f32[8]{0} dynamic-slice(%x, %i), backend_config={"estimated_cycles":"100"}
  %fusion.2 = f32[8]{0} fusion(%slice.1), kind=kLoop, backend_config={"estimated_cycles":"300"}
  ROOT %all-reduce.3 = f32[8]{0} all-reduce(%fusion.2), replica_groups={}
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %copy.4 = f32[8]{0} copy(%x), backend_config={"estimated_cycles":"1000"}
  %while.5 = (s32[], f32[8]) while(%tuple), condition=%condition, body=%body
  %all-reduce-start.6 = f32[8]{0} all-reduce-start(%copy.4), replica_groups={}
  %all-reduce-done.6 = f32[8]{0} all-reduce-done(%all-reduce-start.6)
  ROOT %outfeed.7 = token[] outfeed(%copy.4, %token)
}
"""


def test_figures_multiply_loops_and_count_what_leaves_the_device():
    found = compiled.read_figures(PROGRAM, 2**20, 2**21)
    assert found.ms == pytest.approx((1000 + 35 * 400) / compiled.CLOCK_KHZ)
    assert found.moved == pytest.approx((1000 + 35 * 100) / (1000 + 35 * 400))
    assert (found.temporary, found.arguments) == (1, 2)
    assert (found.collectives, found.looped, found.transfers) == (1, 1, 1)


def test_without_the_compiler_the_command_says_so(monkeypatch):
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["compiled"])
    with pytest.raises(UserError, match=r"libtpu.*pip install"):
        compiled.main()


def run(tmp_path, *flags):
    if find_spec("libtpu") is None:
        pytest.skip('libtpu is not installed: pip install -e ".[compile]"')
    command = [
        sys.executable,
        "-m",
        "benchmarks.compiled",
        "--data",
        "small",
        "--out",
        str(tmp_path),
        *flags,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return json.loads((tmp_path / "compiled.json").read_text())["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_training_step_compiles_for_one_and_four_devices(name, tmp_path):
    preset = next(iter(find_experiment(name).presets))
    one, four = run(
        tmp_path, "--parts", "steps", "--only", f"{name}:{preset}", "--models", "default"
    )
    for row in (one, four):
        assert "error" not in row and row["transfers"] == row["looped"] == 0
        assert row["temporary"] + row["arguments"] < 16e9 / 2**20
    assert one["collectives"] == 0 < four["collectives"] < 10


@pytest.mark.slow
def test_the_dynamic_skip_is_estimated_at_most_half_above_the_lstm(tmp_path):
    flags = ("--parts", "steps", "--only", "ptb:paper", "--devices", "1")
    lstm, dynamic = (row["ms"] for row in run(tmp_path, *flags, "--models", "lstm,dynamic:5"))
    assert lstm < dynamic <= 1.5 * lstm
