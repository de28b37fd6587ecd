"""Check that the benchmark of recurrent layers runs at tiny sizes and writes its measurements."""

import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pytest
from rich.console import Console

from benchmarks import measure, recurrence, report
from benchmarks.candidate import Candidate, Ready
from benchmarks.candidates import GROWING, layers, why_no_torch
from benchmarks.shapes import FULL, TINY, Shape
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import read_flags

# Every table has rows, but few programs have to be compiled.
SMALLEST = dataclasses.replace(TINY, growth={"time": TINY.growth["time"]}, num_seeds=(2,))


@pytest.fixture
def measured(tmp_path, capsys):
    """Return a function that runs parts of the benchmark.

    It returns the written JSON, the printed text and the output folder.
    """

    def run(*parts, rounds=2):
        flags = recurrence.Flags(parts=parts, rounds=rounds, out=str(tmp_path))
        recurrence.run(flags, SMALLEST, Console(width=200))
        text = (tmp_path / "recurrence.json").read_text()
        return json.loads(text, parse_constant=pytest.fail), capsys.readouterr().out, tmp_path

    return run


@pytest.mark.slow
def test_shapes_and_memory_of_every_layer(measured):
    content, text, _ = measured("shapes", "memory")
    names = [entry.name for entry in layers(TINY.shapes["tiny"])]
    timed = [row for row in content["rows"] if row["part"] == "shapes"]
    assert [row["candidate"] for row in timed] == names
    for row in timed:
        assert row["unit"] == "ms"
        assert len(row["values"]) == 2
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert row["ratios"]["lstm"]["low"] <= row["ratios"]["lstm"]["high"]
        assert row["sizes"] == dataclasses.asdict(TINY.shapes["tiny"])
    in_jax = [name for name in names if not name.startswith("torch")]
    held = [row for row in content["rows"] if row["part"] == "memory"]
    assert [row["candidate"] for row in held] == in_jax  # the memory of PyTorch is not measured on a CPU
    assert all(row["unit"] == "MiB" and row["median"] > 0 for row in held)
    assert all(name in text for name in names)
    assert "tiny: T=3 B=2 in=4 H=5 K=2 λ=0.5" in text
    assert not any("did not run" in note for note in content["notes"])


@pytest.mark.slow
def test_growth_seeds_and_training(measured):
    content, text, folder = measured("growth", "seeds", "training")
    rows = content["rows"]
    growth = [row for row in rows if row["part"] == "growth"]
    assert {row["candidate"] for row in growth} <= set(GROWING)
    assert [row["label"] for row in growth if row["candidate"] == "lstm"] == ["2", "3"]
    assert (folder / "growth.png").read_bytes().startswith(b"\x89PNG")
    seeds = [row for row in rows if row["part"] == "seeds"]
    assert [(row["label"], row["candidate"]) for row in seeds] == [
        ("2 seeds", name) for name in ("one by one", "vmap")
    ]
    training = [row for row in rows if row["part"] == "training"]
    assert [row["candidate"] for row in training] == ["lstm", "dynamic:5"]
    assert all(row["sizes"]["tokens"] == 6 for row in training)
    assert "tokens/s" in text
    assert not any("did not run" in note for note in content["notes"])


@pytest.mark.slow
def test_about_says_where_it_ran(measured):
    content, text, _ = measured("memory")
    about = content["about"]
    assert about["backend"] == jax.default_backend()
    assert about["versions"]["jax"] == jax.__version__
    assert about["cores"] >= 1
    assert about["device"] and about["device"] in text
    assert ("torch" in about["versions"]) == any("torch" in key for key in about)


def test_without_pytorch_the_output_says_so(measured, monkeypatch):
    why = "PyTorch is not installed"
    monkeypatch.setattr(recurrence, "why_no_torch", lambda: why)
    monkeypatch.setattr("benchmarks.candidates.why_no_torch", lambda: why)
    monkeypatch.setattr(recurrence, "layers", partial(layers, names=("lstm",)))
    content, text, _ = measured("memory")
    assert content["notes"] == [why]
    assert why in text
    assert "torch" not in content["about"]
    assert content["about"]["versions"]["jax"] == jax.__version__
    assert content["about"]["device"] in text


def test_on_a_gpu_cudnn_takes_part_and_a_pytorch_without_it_does_not(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    names = [entry.name for entry in layers(TINY.shapes["tiny"], names=("lstm", "lstm cudnn"))]
    assert names == ["lstm", "lstm cudnn"]
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "cannot use the GPU" in why_no_torch()
    assert not any(entry.name.startswith("torch") for entry in layers(TINY.shapes["tiny"]))


@pytest.mark.slow
def test_command_line(tmp_path, monkeypatch, capsys):
    caching = jax.config.jax_enable_compilation_cache
    command = [
        "recurrence",
        "--tiny",
        "--parts",
        "memory",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "a" / "b"),
    ]
    monkeypatch.setattr("sys.argv", command)
    try:
        recurrence.main()
    finally:
        jax.config.update("jax_enable_compilation_cache", caching)
    assert (tmp_path / "a" / "b" / "recurrence.json").exists()
    assert "memory of a step" in capsys.readouterr().out
    assert read_flags("", "", recurrence.Flags, []).parts == recurrence.PARTS
    assert recurrence.PARTS[0] == "shapes" and len(recurrence.PARTS) == 7
    with pytest.raises(UserError, match="--parts has 'speed': choose shapes, transitions"):
        read_flags("", "", recurrence.Flags, ["--parts", "memory,speed"])


@pytest.mark.parametrize("part", recurrence.PARTS)
def test_every_part_is_planned(part):
    tasks = recurrence.plan(part, FULL, 15)
    assert tasks
    assert all(task.work > 0 and task.rounds >= 1 for task in tasks)
    labels = [(task.case.table, task.case.label) for task in tasks]
    assert len(set(labels)) == len(labels)


def test_growth_changes_one_axis_alone():
    for axis, shapes in FULL.growth.items():
        values = [getattr(shape, axis) for shape in shapes]
        assert values == sorted(set(values))
        rest = {dataclasses.replace(shape, **{axis: 1, "features": 1}) for shape in shapes}
        assert len(rest) == 1
    assert max(shape.time for shape in FULL.growth["time"]) == 4000
    assert {shape.max_skip for shape in FULL.growth["max_skip"]} >= {2, 10}


def candidate(name, step):
    return Candidate(name, lambda: Ready(step))


def nothing():
    pass


def test_everyone_has_as_many_turns_in_orders_that_change():
    calls = []
    steps = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    ticks = []
    values = measure.take_turns(steps, 20, lambda: ticks.append(1), least_ms=1e-9)
    assert {name: len(v) for name, v in values.items()} == {"a": 20, "b": 20, "c": 20}
    turns = ["".join(calls[i : i + 3]) for i in range(6, len(calls), 3)]
    assert len(turns) == 20 and all(sorted(turn) == list("abc") for turn in turns)
    assert len(set(turns)) > 3
    assert len(ticks) == 3 * 20


@pytest.mark.slow
def test_one_that_fails_is_named_and_the_others_go_on():
    def fail():
        raise MemoryError("too much\nof it")

    entries = [candidate("good", nothing), candidate("bad", fail)]
    for method in (measure.milliseconds, measure.first_steps):
        result = method(entries, 2, nothing)
        assert list(result.values) == ["good"]
        assert result.failed == {"bad": "MemoryError: too much"}
    assert measure.megabytes(entries, 1, nothing).values == {}


def test_an_error_without_a_message_is_named_too():
    def fail():
        raise MemoryError

    assert measure.milliseconds([candidate("bad", fail)], 1, nothing).failed == {"bad": "MemoryError"}


def test_ratio_is_taken_turn_by_turn():
    ratio = measure.ratio(np.array([2.0, 40.0, 6.0]), np.array([1.0, 10.0, 2.0]))
    assert (ratio.median, ratio.low, ratio.high) == (3.0, 2.5, 3.5)
    assert str(ratio) == "3.00 (2.50–3.50)"
    assert str(measure.Ratio(3.0, 3.0, 3.0)) == "3.00"


@pytest.mark.parametrize(
    "method",
    [measure.milliseconds, measure.first_steps, measure.megabytes],
    ids=lambda method: method.__name__,
)
def test_the_bar_advances_for_each_candidate_and_turn(method):
    ticks = []
    rounds = 1 if method is measure.megabytes else 3
    method([candidate(name, nothing) for name in "ab"], rounds, lambda: ticks.append(1))
    assert len(ticks) == 2 * (rounds + 1)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0123, "0.0123"), (1, "1.00"), (45.67, "45.7"), (12345.6, "12,346")]
)
def test_numbers_have_three_digits(value, text):
    assert measure.number(value) == text


def test_tables_leave_blank_what_did_not_run():
    def case(label):
        return report.Case("growth", "T", label, {}, "ms", ("torch.nn.LSTM", "lstm"))

    one, two = np.array([1.0]), np.array([2.0])
    rows = report.rows(case("2"), measure.Measured({"lstm": one, "dynamic:k": two}, {}))
    rows += report.rows(case("3"), measure.Measured({"dynamic:k": two}, {"lstm": "why"}))
    (table,) = report.tables(rows)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table.for_terminal())
    lines = [line for line in captured.get().splitlines() if "dynamic:k / lstm" in line]
    assert len(lines) == 1 and lines[0].count("2.00") == 1
    assert "| dynamic:k / lstm | 2.00 |  |" in table.as_markdown().replace(" (2.00–2.00)", "")


def test_a_part_with_one_pair_in_each_table_is_one_table_of_ratios():
    def rows(title, label, fused):
        case = report.Case("transitions", title, label, {}, "ms", ("reference",))
        values = {"reference": np.array([2.0]), "fused": np.array([fused])}
        return report.rows(case, measure.Measured(values, {}))

    all_rows = [*rows("lstm", "small", 1.0), *rows("lstm", "large", 4.0), *rows("gru", "small", 3.0)]
    (table,) = report.tables(all_rows)
    assert table.header == ["transitions", "small", "large"]
    cells = [[cell.split(" ")[0] for cell in row] for row in table.sections[0]]
    assert cells == [["lstm", "0.500", "2.00"], ["gru", "1.50", ""]]


def test_shape_says_its_sizes():
    assert str(Shape(4000, 1, 2, 3, 4, 0.5)) == "T=4,000 B=1 in=2 H=3 K=4 λ=0.5"
