"""The experiments' command lines: what a run leaves behind, and errors of one line that leave nothing."""

import errno
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.tasks.classification import Classification
from experiments import experiment, number_prediction, ptb

SMALL_PTB = (
    *("--preset", "small", "--features", 8, "--agent-features", 4),
    *("--num-steps", 5, "--batch-size", 4, "--epochs", 2),
)
SMALL_NUMBERS = ("--features", 8, "--agent-features", 4, "--batch-size", 20, "--epochs", 2)
RESULT_KEYS = {
    *("experiment", "dataset", "model", "parameters", "seeds", "metrics"),
    *("wall_seconds", "backend", "devices", "versions"),
}


def load(path):
    return json.loads(path.read_text())


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def snapshot(folder):
    """Every file and folder below, with the files' bytes."""
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def assert_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 1000


def assert_user_error(outcome, *parts):
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.endswith("\n") and outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err + outcome.out
    for part in parts:
        assert part in outcome.err


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """An empty folder to be in: whatever is written without being told where lands there."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def finished(command, corpus_folder, tmp_path_factory):
    """A finished run of experiments.ptb: (folder, arguments, outcome)."""
    folder = tmp_path_factory.mktemp("ptb") / "run"
    arguments = ("--data", corpus_folder, "--model", "dynamic:3", *SMALL_PTB)
    return folder, arguments, command(ptb.main, *arguments, "--run-dir", folder)


# --- One model ---


def test_run_folder_has_what_the_design_says(finished, corpus_folder):
    folder, _, outcome = finished
    assert outcome.status == 0, outcome.err
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "metrics.jsonl", "result.json", "checkpoints", "plots", "vocabulary.json", ".lock")
    }
    assert any((folder / "checkpoints").iterdir())
    assert {path.name for path in (folder / "plots").iterdir()} == {"learning_curve.png", "skips_by_word.png"}
    for path in (folder / "plots").iterdir():
        assert_picture(path)

    config = load(folder / "config.json")
    expected = dict(experiment="ptb", model="dynamic:3", preset="small", features=8, num_steps=5, epochs=2)
    assert {name: config[name] for name in expected} == expected
    assert config["learning_rate"] == 1.0  # what no flag names is resolved too

    # 360 tokens in 4 rows are 18 segments of 5 an epoch.
    dev = [record for record in records(folder) if record["split"] == "dev"]
    assert [(record["epoch"], record["step"]) for record in dev] == [(1, 18), (2, 36)]


def test_result_has_what_the_design_says(finished, corpus_folder):
    folder, _, _ = finished
    result = load(folder / "result.json")
    assert result.keys() >= RESULT_KEYS
    assert (result["experiment"], result["model"], result["seeds"]) == ("ptb", "dynamic:3", [0])
    dataset = result["dataset"]
    assert dataset["name"] == "letters"
    assert dataset["sizes"] == {"train": 360, "valid": 54, "test": 42, "vocabulary": 9}
    assert len(dataset["fingerprint"]) == 64
    agent = (8 + 8) * 4 + 4 + 4 * 3 + 3
    assert result["parameters"] == 9 * 8 + 2 * 4 * (8 * 8 + 8 * 8 + 8) + 8 * 9 + 9 + agent
    for split in ("dev", "test"):
        for suffix in ("", "_greedy", "_sampled"):
            metric = result["metrics"][f"{split}_perplexity{suffix}"]
            assert metric.keys() == {"mean", "std", "per_seed"}
            assert metric["per_seed"] == [metric["mean"]] and metric["std"] == 0
            assert 1 < metric["mean"] < 30
    assert result["wall_seconds"] >= 0
    assert result["backend"] == "cpu" and len(result["devices"]) >= 1
    assert result["versions"].keys() >= {"python", "jax", "flax", "optax", "dynskip_jax"}


def test_output_says_which_data_and_settings_and_ends_with_a_table(finished):
    folder, _, outcome = finished
    lines = outcome.out.splitlines()
    assert lines[0].startswith("data: letters from the folder ") and "train 360" in lines[0]
    assert lines[1].startswith("preset: small")
    assert f"run folder: {folder}" in outcome.out
    result = load(folder / "result.json")
    row = next(line for line in lines if "dynamic:3" in line and "│" in line)
    assert f"{result['metrics']['test_perplexity']['mean']:.2f}" in row
    assert f"{result['parameters']:,}" in row
    # The paper's numbers are for its corpus alone.
    assert "paper" not in outcome.out
    assert "Traceback" not in outcome.err


def test_finished_run_is_shown_and_not_trained_again(finished, command, monkeypatch):
    folder, arguments, first = finished

    def trained(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(experiment, "fit", trained)
    before = snapshot(folder)
    again = command(ptb.main, *arguments, "--run-dir", folder)
    assert again.status == 0
    assert "finished already" in again.out
    assert again.out.splitlines()[-3:] == first.out.splitlines()[-3:]
    assert snapshot(folder) == before


def test_terminated_run_says_how_to_go_on_and_ends_as_if_nothing_had_happened(
    finished, command, tmp_path, monkeypatch
):
    folder, arguments, _ = finished
    log, signals = RunDir.log, [signal.SIGTERM]

    def log_and_terminate(run, record):
        log(run, record)
        if signals:
            os.kill(os.getpid(), signals.pop())

    with monkeypatch.context() as patch:
        # The first records are those of the first epoch's end: it stops when that epoch is saved.
        patch.setattr(RunDir, "log", log_and_terminate)
        stopped = command(ptb.main, *arguments, "--run-dir", tmp_path / "run")
    assert stopped.status == 130
    last = stopped.err.splitlines()[-1]
    assert "progress is saved" in last and f"--run-dir {tmp_path / 'run'}" in last
    assert "Traceback" not in stopped.err
    assert not (tmp_path / "run" / "result.json").exists()

    resumed = command(ptb.main, *arguments, "--run-dir", tmp_path / "run")
    assert resumed.status == 0
    assert "resuming after step 18" in resumed.out
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    one, other = (load(path / "result.json") for path in (folder, tmp_path / "run"))
    assert one["metrics"] == other["metrics"]


@pytest.mark.slow
def test_run_on_one_device_goes_on_with_several(finished, command, tmp_path, monkeypatch):
    folder, arguments, _ = finished
    log, stop = RunDir.log, [signal.SIGTERM]

    def log_and_terminate(run, record):
        log(run, record)
        if stop:
            os.kill(os.getpid(), stop.pop())

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "log", log_and_terminate)
        assert command(ptb.main, *arguments, "--run-dir", tmp_path / "run").status == 130
    resumed = command(
        *(ptb.main, *arguments, "--run-dir", tmp_path / "run", "--devices", 2, "--parallel", "pmap")
    )
    assert resumed.status == 0, resumed.err
    assert "resuming after step 18" in resumed.out
    assert "2 of 8 cpu device(s)" in resumed.out.splitlines()[1]
    one, other = (load(path / "result.json") for path in (folder, tmp_path / "run"))
    assert (len(one["devices"]), len(other["devices"])) == (1, 2)
    assert one["metrics"].keys() == other["metrics"].keys()
    for name, metric in one["metrics"].items():
        assert other["metrics"][name]["mean"] == pytest.approx(metric["mean"], rel=1e-4)
    assert load(folder / "config.json") == load(tmp_path / "run" / "config.json")


def test_default_run_folder_names_task_and_model(command, corpus_folder, here):
    outcome = command(ptb.main, "--data", corpus_folder, "--model", "lstm", *SMALL_PTB, "--epochs", 1)
    assert outcome.status == 0, outcome.err
    (folder,) = (here / "runs" / "ptb").iterdir()
    assert folder.name.startswith("lstm-")
    assert (folder / "result.json").is_file()
    assert [path.name for path in here.iterdir()] == ["runs"]


@pytest.mark.slow
def test_released_preset_runs(command, corpus_folder, tmp_path):
    arguments = ("--data", corpus_folder, *SMALL_PTB, "--epochs", 1, "--preset", "released")
    outcome = command(ptb.main, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    config = load(tmp_path / "run" / "config.json")
    assert (config["num_layers"], config["restart_buffer"], config["agent_input"]) == (3, True, "mean")
    metrics = load(tmp_path / "run" / "result.json")["metrics"]
    assert metrics["test_perplexity"] == metrics["test_perplexity_sampled"]


def test_without_data_the_embedded_corpus_is_used_and_named_everywhere(command, tmp_path):
    arguments = ("--model", "lstm", "--features", 8, "--epochs", 1, "--num-steps", 50, "--batch-size", 100)
    outcome = command(ptb.main, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    name = "pydoc-topics"
    assert outcome.out.startswith(f"data: {name} from ")
    assert "no PTB" in outcome.out.splitlines()[0]
    assert f"ptb on {name}" in outcome.out
    assert "not comparable" in outcome.out and "paper" not in outcome.out
    assert load(tmp_path / "run" / "result.json")["dataset"]["name"] == name
    assert load(tmp_path / "run" / "config.json")["dataset"]["name"] == name


# --- Several models, several seeds, the other experiment ---


@pytest.mark.slow
def test_compared_models_have_a_folder_each_and_one_result(command, corpus_folder, tmp_path):
    folder = tmp_path / "run"
    arguments = ("--data", corpus_folder, "--compare", "lstm,dynamic:3", "--seeds", 2, *SMALL_PTB)
    outcome = command(ptb.main, *arguments, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    assert {path.name for path in folder.iterdir() if path.is_dir()} >= {"lstm", "dynamic-3"}
    top = load(folder / "result.json")
    assert top["experiment"] == "ptb" and top["dataset"]["name"] == "letters"
    assert [row["model"] for row in top["rows"]] == ["lstm", "dynamic:3"]
    for row, name in zip(top["rows"], ("lstm", "dynamic-3"), strict=True):
        assert row == load(folder / name / "result.json")
        assert row["seeds"] == [0, 1]
        for metric in row["metrics"].values():
            assert metric["mean"] == pytest.approx(statistics.mean(metric["per_seed"]))
            assert metric["std"] == pytest.approx(statistics.stdev(metric["per_seed"]))
        assert len(set(row["metrics"]["test_perplexity"]["per_seed"])) == 2
        assert_picture(folder / name / "plots" / "learning_curve.png")
    assert_picture(folder / "plots" / "dev_perplexity.png")
    rows = [line for line in outcome.out.splitlines() if "│" in line]
    assert sum("lstm" in line for line in rows) == sum("dynamic:3" in line for line in rows) == 1
    assert all("±" in line for line in rows[-2:])

    before = {name: snapshot(folder / name) for name in ("lstm", "dynamic-3")}
    again = command(ptb.main, *arguments, "--run-dir", folder)
    assert again.status == 0 and again.out.count("finished already") == 2
    assert {name: snapshot(folder / name) for name in before} == before


@pytest.mark.parametrize(
    "length", [11, *(pytest.param(length, marks=pytest.mark.slow) for length in (21, 15))]
)
def test_number_prediction_run(length, command, small_number_prediction, tmp_path):
    folder = tmp_path / "run"
    max_skip = max(10, length - 1) if length != 21 else 10
    arguments = ("--length", length, "--model", f"dynamic:{max_skip}", "--seeds", 2, *SMALL_NUMBERS)
    if length == 21:
        arguments += ("--relaxed-epochs", 1)
    outcome = command(number_prediction.main, *arguments, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith(f"data: number_prediction/length_{length}, made for a test (train 60")
    result = load(folder / "result.json")
    assert result.keys() >= RESULT_KEYS
    assert result["experiment"] == "number_prediction"
    assert result["dataset"]["name"] == f"number_prediction/length_{length}"
    assert result["dataset"]["sizes"] == {"train": 60, "dev": 20, "test": 30}
    # One feature for each symbol; at length 21 one for each position too.
    features = {11: 10, 21: 10 + 21, 15: 14}[length]
    agent = (8 + features) * 4 + 4 + 4 * max_skip + max_skip
    assert result["parameters"] == 4 * (features * 8 + 8 * 8 + 8) + 8 * 10 + 10 + agent
    for split, size in (("dev", 20), ("test", 30)):
        for suffix in ("", "_greedy", "_sampled", "_averaged"):
            values = result["metrics"][f"{split}_accuracy{suffix}"]["per_seed"]
            assert len(values) == 2
            # Shares of whole examples: padding of the last batch is not counted.
            assert all(0 <= value <= 1 and round(value * size, 3) % 1 == 0 for value in values)
    assert all(0 <= value <= 1 for value in result["metrics"]["test_exact_decisions"]["per_seed"])
    pictures = {path.name for path in (folder / "plots").iterdir()}
    chains = {"chain_visits_hop_1.png", "chain_visits_hop_2.png"}
    assert pictures == {"learning_curve.png", "skips_by_position.png"} | (
        chains if length == 21 else {"last_skip_against_truth.png"}
    )
    for name in pictures:
        assert_picture(folder / "plots" / name)
    assert ("paper: LSTM" in outcome.out) == (length != 15)
    # 60 examples in batches of 20.
    dev = [record for record in records(folder) if record["split"] == "dev"]
    assert [(record["step"], record["examples"]) for record in dev] == [(3, 60), (6, 120)]


@pytest.mark.slow
def test_a_sweep_is_one_run_and_each_value_a_row(command, small_number_prediction, tmp_path):
    folder = tmp_path / "run"
    swept = ("--mix", "0.1,0.9", "--max-skip", "2,6,10", "--seeds", 2)
    arguments = ("--compare", "lstm,dynamic:10", *swept, *SMALL_NUMBERS, "--epochs", 1)
    outcome = command(number_prediction.main, *arguments, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    lstm, dynamic = (load(folder / name / "result.json") for name in ("lstm", "dynamic-10"))
    assert "sweep" not in lstm  # it has neither λ nor an agent with a K
    assert [row["value"] for row in dynamic["sweep"]] == [
        {"mix": mix, "max_skip": K} for mix in (0.1, 0.9) for K in (2, 6, 10)
    ]
    assert dynamic["seeds"] == [0, 1]
    for row in dynamic["sweep"]:
        assert len(row["metrics"]["test_accuracy"]["per_seed"]) == 2
        assert f"λ={row['value']['mix']}, K={row['value']['max_skip']}" in outcome.out
    # The best value on dev stands for the sweep.
    best = max(dynamic["sweep"], key=lambda row: row["metrics"]["dev_accuracy"]["mean"])
    selected = next(row for row in dynamic["sweep"] if row["value"] == dynamic["selected"])
    assert selected["metrics"]["dev_accuracy"]["mean"] == best["metrics"]["dev_accuracy"]["mean"]
    assert dynamic["metrics"] == selected["metrics"]
    for name in ("dev_accuracy_over_mix.png", "dev_accuracy_over_max_skip.png", "learning_curve.png"):
        assert_picture(folder / "dynamic-10" / "plots" / name)
    (dev,) = (record for record in records(folder / "dynamic-10") if record["split"] == "dev")
    assert len(dev["dev_accuracy"]) == 12

    again = command(number_prediction.main, *arguments, "--run-dir", folder)
    assert again.status == 0 and again.out.count("finished already") == 2
    other = command(number_prediction.main, *arguments, "--mix", "0.1,0.8", "--run-dir", folder)
    assert_user_error(other, "mixes was [0.1, 0.9] and is now [0.1, 0.8]")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--max-skip", "4,12"), ("--max-skip 12", "dynamic:10")),
        (("--max-skip", "0,2"), ("--max-skip must be at least 1",)),
        (("--max-skip", "2.5"), ("--max-skip takes whole numbers",)),
        (("--mix", "0.1,much"), ("--mix takes numbers",)),
        (("--mix", "0.5,0.5"), ("--mix names a value twice",)),
        (("--mix", "0.5,1.5"), ("between 0 and 1",)),
        (("--preset", "rollouts", "--relaxed-epochs", "2"), ("need a relaxation",)),
        (("--relaxation", "hard", "--relaxed-epochs", "2"), ("--relaxation", "'hard'")),
        (("--estimator", "vimco", "--rollouts", "1"), ("at least 2",)),
        (("--positions", "all"), ("--positions", "'all'")),
        (("--length", "502"), ("no length 502",)),
        (("--model", "lstm", "--mix", "0.1,0.5"), ("lstm has neither λ nor K", "dynamic:10")),
        (("--learning-rate", "inf"), ("--learning-rate must be positive and finite, got inf",)),
        (("--rl-coef", "nan"), ("--rl-coef must be a finite number, got nan",)),
        (("--seed", "4294967296"), ("seeds lie between 0 and 4,294,967,295, got 4294967296",)),
        (("--seed", "4294967295", "--seeds", "2"), ("4294967295 and 2 of them",)),
    ],
    ids=" ".join,
)
def test_what_cannot_be_trained_is_said_in_one_line(
    arguments, parts, command, small_number_prediction, tmp_path, here
):
    outcome = command(number_prediction.main, *arguments, "--run-dir", tmp_path / "run")
    assert_user_error(outcome, *parts)
    assert not (tmp_path / "run").exists() and not list(here.iterdir())


@pytest.mark.slow
def test_number_prediction_compares_with_models_that_sample_nothing(
    command, small_number_prediction, tmp_path
):
    compared = ("--compare", "lstm,dynamic:10")
    outcome = command(
        number_prediction.main, *compared, *SMALL_NUMBERS, "--epochs", 1, "--run-dir", tmp_path / "run"
    )
    assert outcome.status == 0, outcome.err
    rows = load(tmp_path / "run" / "result.json")["rows"]
    assert [row["model"] for row in rows] == ["lstm", "dynamic:10"]
    assert ["test_accuracy_sampled" in row["metrics"] for row in rows] == [False, True]


def test_number_prediction_released_preset_runs(command, small_number_prediction, tmp_path):
    arguments = ("--preset", "released", "--features", 8, "--batch-size", 20, "--epochs", 1)
    outcome = command(number_prediction.main, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    config = load(tmp_path / "run" / "config.json")
    assert (config["reward"], config["agent_features"], config["mix"]) == ("correct", 10, 1.0)


@pytest.mark.parametrize("name", ["ptb", pytest.param("number_prediction", marks=pytest.mark.slow)])
def test_run_in_bfloat16(name, command, corpus_folder, small_number_prediction, finished, tmp_path):
    main, arguments = {
        "ptb": (ptb.main, finished[1]),
        "number_prediction": (number_prediction.main, ("--model", "dynamic:10", *SMALL_NUMBERS)),
    }[name]
    outcome = command(main, *arguments, "--precision", "bf16", "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    assert load(tmp_path / "run" / "config.json")["precision"] == "bf16"
    if name == "ptb":
        assert load(finished[0] / "config.json")["precision"] == "f32"
        one, other = (load(path / "result.json")["metrics"] for path in (finished[0], tmp_path / "run"))
        narrow, wide = other["test_perplexity"]["mean"], one["test_perplexity"]["mean"]
        assert narrow != wide and narrow == pytest.approx(wide, rel=0.02)


# --- Errors ---


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model", "nope"), ("unknown model 'nope'", "dynamic:k")),
        (("--model", "dynamic:0"), ("at least 1",)),
        (("--model", "dynamic:-3"), ("at least 1",)),
        (("--model", "dynamic:x"), ("whole number",)),
        (("--model", "dynamic"), ("dynamic:k",)),
        (("--model", "lstm,dynamic:5"), ("--compare",)),
        (("--model", "lstm", "--compare", "lstm,dynamic:5"), ("--model", "--compare", "not both")),
        (("--compare", "lstm,nope"), ("unknown model 'nope'",)),
        (("--compare", "lstm,lstm"), ("twice",)),
        (("--preset", "nope"), ("unknown preset 'nope'", "paper", "released")),
        (("--mix", "1.5"), ("between 0 and 1", "1.5")),
        (("--mix", "-0.1"), ("between 0 and 1", "-0.1")),
        (("--mix", "nan"), ("between 0 and 1", "nan")),
        (("--epochs", "0"), ("--epochs", "at least 1")),
        (("--batch-size", "0"), ("--batch-size", "at least 1")),
        (("--seeds", "0"), ("--seeds", "at least 1")),
        (("--features", "-1"), ("--features", "at least 1")),
        (("--seed", "-1"), ("--seed", "negative")),
        (("--patience", "-1"), ("--patience", "negative")),
        (("--dropout", "1.0"), ("--dropout",)),
        (("--learning-rate", "0"), ("--learning-rate", "positive")),
        (("--reward", "nope"), ("--reward", "correct")),
        (("--evaluation-mode", "nope"), ("--evaluation-mode", "greedy")),
        (("--precision", "f16"), ("--precision", "f32 or bf16")),
        (("--agent-input", "nope"), ("nope", "previous", "mean")),
        (("--rl-coef", "-1"), ("must not be negative",)),
        (("--entropy-coef", "-1"), ("must not be negative",)),
        (("--batch-size", "100000"), ("--batch-size",)),
        (("--devices", "0"), ("--devices", "at least 1")),
        (("--devices", "9"), ("--devices 9", "has 8")),
        (("--devices", "8", "--batch-size", "20"), ("--batch-size 20", "8 devices", "multiple of 8")),
        (("--devices", "2", "--parallel", "xmap"), ("--parallel", "xmap", "jit or pmap")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0].startswith("--") else "",
)
@pytest.mark.parametrize("name", ["ptb", "number_prediction"])
def test_senseless_flag_is_one_line_and_nothing_is_written(
    name, arguments, parts, command, corpus_folder, small_number_prediction, here
):
    main = {"ptb": ptb.main, "number_prediction": number_prediction.main}[name]
    data = ("--data", corpus_folder) if name == "ptb" else ()
    assert_user_error(command(main, *data, *arguments), *parts)
    assert snapshot(here) == {}


@pytest.mark.parametrize(
    ("main", "arguments", "parts"),
    [
        (ptb.main, ("--discount", "1.5"), ("discount", "1.5")),
        (ptb.main, ("--baseline", "rollouts"), ("rollouts",)),
        (ptb.main, ("--num-layers", "0"), ("--num-layers", "at least 1")),
        (ptb.main, ("--clip", "0"), ("--clip", "positive")),
        (ptb.main, ("--dataset", "nope"), ("no dataset 'nope'",)),
        (number_prediction.main, ("--length", "10"), ("no length 10", "11", "21")),
        (number_prediction.main, ("--rollouts", "0"), ("--rollouts", "at least 1")),
        (number_prediction.main, ("--rollouts", "1"), ("at least 2",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0].startswith("--") else "",
)
def test_senseless_flag_of_one_experiment(
    main, arguments, parts, command, corpus_folder, small_number_prediction, here
):
    data = ("--data", corpus_folder) if main is ptb.main and "--dataset" not in arguments else ()
    assert_user_error(command(main, *data, *arguments), *parts)
    assert snapshot(here) == {}


def no_folder(folder):
    shutil.rmtree(folder)
    return (folder.name, "train.txt")


def no_valid(folder):
    (folder / "valid.txt").unlink()
    return ("valid", folder.name)


def empty_file(folder):
    (folder / "train.txt").write_text("")
    return ("train.txt", "empty")


def not_utf8(folder):
    (folder / "test.txt").write_bytes(b"a b \xff c\n")
    return ("test.txt", "UTF-8", "offset 4")


def truncated_ptb(folder):
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").rename(folder / f"ptb.{split}.txt")
    return ("truncated", "360", "929,589")


@pytest.mark.parametrize("damage", [no_folder, no_valid, empty_file, not_utf8, truncated_ptb])
def test_unusable_data_is_one_line_and_nothing_is_written(damage, command, corpus_folder, here, tmp_path):
    folder = tmp_path / "letters"
    shutil.copytree(corpus_folder, folder)
    parts = damage(folder)
    before = snapshot(tmp_path)
    outcome = command(ptb.main, "--data", folder, *SMALL_PTB)
    assert_user_error(outcome, *parts)
    assert snapshot(tmp_path) == before


def test_data_asked_for_by_name_and_not_found(command, here):
    assert_user_error(command(ptb.main, "--dataset", "ptb", *SMALL_PTB), "ptb", "--data", "DYNSKIP_DATA_DIR")
    assert snapshot(here) == {}


@pytest.mark.parametrize(
    "change",
    [("--features", 9), ("--seed", 1), ("--mix", "0.25"), ("--model", "lstm"), ("--precision", "bf16")],
)
def test_run_folder_of_other_settings_is_left_as_it_is(change, finished, command, tmp_path):
    folder, arguments, _ = finished
    shutil.copytree(folder, tmp_path / "run")
    before = snapshot(tmp_path / "run")
    outcome = command(ptb.main, *arguments, *change, "--run-dir", tmp_path / "run")
    assert_user_error(outcome, "other settings", change[0].removeprefix("--"), "--run-dir")
    assert snapshot(tmp_path / "run") == before


@pytest.mark.parametrize("models", [("--model", "lstm"), ("--compare", "lstm,dynamic:3")])
def test_folder_that_is_no_run_is_left_as_it_is(models, command, corpus_folder, tmp_path):
    folder = tmp_path / "holiday"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(b"sea")
    outcome = command(ptb.main, "--data", corpus_folder, *models, *SMALL_PTB, "--run-dir", folder)
    assert_user_error(outcome, "holiday", "not a run", "--run-dir")
    assert snapshot(folder) == {Path("photo.jpg"): b"sea"}


def test_run_folder_that_is_a_file(command, corpus_folder, tmp_path):
    (tmp_path / "file").write_text("text")
    arguments = ("--data", corpus_folder, "--model", "lstm", *SMALL_PTB)
    assert_user_error(command(ptb.main, *arguments, "--run-dir", tmp_path / "file"), "is a file")
    assert (tmp_path / "file").read_text() == "text"


def test_run_whose_checkpoints_are_all_corrupt(finished, command, tmp_path):
    folder, arguments, _ = finished
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    for path in (tmp_path / "run" / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    outcome = command(ptb.main, *arguments, "--run-dir", tmp_path / "run")
    assert_user_error(outcome, "none of the 2 checkpoints", "delete that folder", "--run-dir")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


def test_help_explains_every_flag(command):
    for main, own in ((ptb.main, "--num-steps"), (number_prediction.main, "--length")):
        outcome = command(main, "--help")
        assert outcome.status == 0
        for flag in (
            "--model",
            "--compare",
            "--mix",
            "--seeds",
            "--preset",
            "--run-dir",
            "--precision",
            "--devices",
            "--parallel",
            own,
        ):
            assert flag in outcome.out


def test_error_of_a_real_process(here):
    # Takes 3 to 5 seconds, nearly all of them for imports.
    done = subprocess.run(
        [sys.executable, "-m", "experiments.ptb", "--model", "nope"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(ptb.__file__).parents[1])},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown model 'nope'") and done.stderr.count("\n") == 1
    assert snapshot(here) == {}


def test_a_run_whose_dev_metric_is_never_a_number_has_no_result(
    command, small_number_prediction, tmp_path, monkeypatch
):
    """It wrote the initial parameters' once."""
    evaluate = Classification.evaluate
    monkeypatch.setattr(
        Classification,
        "evaluate",
        lambda *args, **how: {name: value * np.nan for name, value in evaluate(*args, **how).items()},
    )
    folder = tmp_path / "run"
    arguments = ("--model", "dynamic:10", *SMALL_NUMBERS, "--epochs", 1)
    outcome = command(number_prediction.main, *arguments, "--run-dir", folder)
    assert outcome.status == 2 and "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: the dev metric of seed 0 was never a number")
    assert not (folder / "result.json").exists()


def test_ctrl_c_outside_training_is_one_line(command, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(number_prediction, "load_number_prediction", interrupt)
    outcome = command(number_prediction.main)
    assert outcome.status == 130 and outcome.err == "interrupted\n"


def test_a_full_disk_is_one_line(command, small_number_prediction, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")

    monkeypatch.setattr(RunDir, "log", full)
    arguments = ("--model", "lstm", *SMALL_NUMBERS, "--epochs", 1, "--run-dir", tmp_path / "run")
    outcome = command(number_prediction.main, *arguments)
    assert outcome.status == 2 and "Traceback" not in outcome.err
    said = "error: No space left on device (metrics.jsonl): make room, then the same command goes on"
    assert outcome.err.splitlines()[-1] == said
