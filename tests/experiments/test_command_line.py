"""Check what the experiments' command lines leave in a run folder, and that stopped runs resume."""

import datetime
import errno
import os
import shlex
import signal
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import quick
from commands import (
    SMALL_NUMBERS,
    SMALL_PTB,
    assert_picture,
    assert_user_error,
    execute,
    load,
    records,
    row_of,
    settings_of,
    snapshot,
)

from dynskip_jax import load_run
from dynskip_jax.experiments import number_prediction, provenance, ptb, run
from dynskip_jax.tasks import Learner
from dynskip_jax.training.folder import RunDir

PTB, NUMBERS = ptb.PTB, number_prediction.NumberPrediction
RESULT_KEYS = {"experiment", "dataset", "rows", "config_sha256", "sha256"}
ROW_KEYS = {
    *("model", "parameters", "seeds", "metrics", "epochs", "epochs_asked"),
    *("best_epoch", "wall_seconds", "backend", "devices", "versions", "checkpoint"),
}

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def terminate(monkeypatch):
    """Return a function that runs a command line and sends SIGTERM after the first record is logged.

    The first record is logged at the end of the first epoch.
    """

    def run_until_then(command, *arguments):
        log, signals = RunDir.log, [signal.SIGTERM]

        def log_and_terminate(run_dir, record):
            log(run_dir, record)
            if signals:
                os.kill(os.getpid(), signals.pop())

        with monkeypatch.context() as patch:
            patch.setattr(RunDir, "log", log_and_terminate)
            return command(*arguments)

    return run_until_then


# --- One model ---


def test_run_folder_has_what_the_design_says(finished_ptb):
    folder = finished_ptb.folder
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "metrics.jsonl", "result.json", "checkpoints", "plots", "vocabulary.json", ".lock")
    }
    assert any((folder / "checkpoints").iterdir())
    assert {path.name for path in (folder / "plots").iterdir()} == {"learning_curve.png"}

    config = load(folder / "config.json")
    assert list(config) == ["format", "run", "experiment", "model", "dataset", "settings", "about"]
    assert (config["format"], config["experiment"], config["model"]) == (3, "ptb", "lstm")
    assert config["dataset"] == {
        name: load(folder / "result.json")["dataset"][name] for name in ("name", "fingerprint")
    }
    groups = config["settings"]
    assert list(groups) == ["run", "data", "model", "agent", "training"]
    assert groups["run"] == {"preset": "small", "seed": 0, "seeds": 1}
    assert (groups["model"]["features"], groups["agent"]["agent_features"]) == (4, 50)
    assert (groups["training"]["num_steps"], groups["training"]["epochs"]) == (5, 2)
    assert groups["training"]["learning_rate"] == 1.0  # settings without a flag are stored, too

    # 360 tokens in 4 rows give 18 segments of 5 steps per epoch.
    dev = [record for record in records(folder) if record["split"] == "dev"]
    assert [(record["epoch"], record["step"]) for record in dev] == [(1, 18), (2, 36)]


def test_config_says_how_the_run_was_begun(finished_ptb):
    """`about` contains the command line, the date, the commit and the data of the run.

    The command line is that of the test process.
    """
    (about,) = load(finished_ptb.folder / "config.json")["about"]
    assert about.keys() == {"command", "commit", "jax", "date", "source", "data", "paths"}
    assert about["command"] == shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])
    date = datetime.datetime.fromisoformat(about["date"])
    assert datetime.timedelta() <= datetime.datetime.now().astimezone() - date < datetime.timedelta(hours=12)
    data = finished_ptb.arguments[1]
    assert about["data"] == str(data)
    assert about["source"] == load(finished_ptb.folder / "result.json")["dataset"]["source"]
    assert str(data) in about["source"]


@pytest.mark.parametrize("answer", ["1f3a5b7c9d0e-dirty\n", None])
def test_the_commit_is_null_where_nobody_knows_it(answer, monkeypatch):
    def git(command, **options):
        assert (options["cwd"] / "pyproject.toml").is_file()
        if command[1] == "ls-files":
            return provenance.subprocess.CompletedProcess(command, 0, "", "")
        assert command[:2] == ["git", "describe"]
        if answer is None:
            raise FileNotFoundError(errno.ENOENT, "git")
        return provenance.subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr(provenance.subprocess, "run", git)
    assert provenance._commit() == (answer and answer.strip())


def test_result_has_what_the_design_says(compared_ptb, finished_ptb):
    folder = compared_ptb.folder / "dynamic-3"
    whole, result = load(folder / "result.json"), row_of(folder)
    assert (whole.keys(), result.keys()) == (RESULT_KEYS, {*ROW_KEYS, "vocabulary_sha256"})
    assert (whole["experiment"], result["model"], result["seeds"]) == ("ptb", "dynamic:3", [0, 1])
    assert (result["epochs"], result["epochs_asked"], result["best_epoch"]) == (1, 1, [1, 1])
    alone = row_of(finished_ptb.folder)
    assert (alone["epochs"], alone["epochs_asked"]) == (2, 2) and alone["best_epoch"][0] in (1, 2)
    for metric in alone["metrics"].values():
        assert metric["per_seed"] == [metric["mean"]] and metric["std"] == 0
    dataset = whole["dataset"]
    assert dataset["name"] == "letters"
    assert dataset["sizes"] == {"train": 360, "dev": 40, "test": 40, "vocabulary": 9}
    assert len(dataset["fingerprint"]) == 64
    agent = (4 + 4) * 2 + 2 + 2 * 3 + 3
    assert result["parameters"] == 9 * 4 + 4 * (4 * 4 + 4 * 4 + 4) + 4 * 9 + 9 + agent
    for split in ("dev", "test"):
        for suffix in ("", "_greedy", "_sampled", "_averaged"):
            metric = result["metrics"][f"{split}_perplexity{suffix}"]
            assert metric.keys() == {"mean", "std", "per_seed"} and len(metric["per_seed"]) == 2
            assert 1 < metric["mean"] < 30
    assert result["wall_seconds"] >= 0
    assert result["backend"] == "cpu" and len(result["devices"]) >= 1
    assert result["versions"].keys() >= {"python", "jax", "flax", "optax", "dynskip_jax"}


def test_output_says_which_data_and_settings_and_ends_with_a_table(finished_ptb):
    folder, _, outcome = finished_ptb
    lines = outcome.out.splitlines()
    assert lines[0].startswith("data: letters, the folder ") and "train 360" in lines[0]
    assert "<unk>" in lines[1]
    assert lines[2].startswith("preset: small (as asked)")
    assert f"run folder: {folder}" in outcome.out
    result = row_of(folder)
    row = next(line for line in lines if "lstm" in line and "│" in line)
    assert f"{result['metrics']['test_perplexity']['mean']:.2f}" in row
    assert f"{result['parameters']:,}" in row
    # The paper's numbers apply only to its corpus.
    assert "paper" not in outcome.out
    assert "Traceback" not in outcome.err


def test_finished_run_is_shown_and_not_trained_again(finished_ptb, command, monkeypatch):
    folder, arguments, first = finished_ptb

    def trained(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(run, "fit", trained)
    before = snapshot(folder)
    again = command(PTB, *arguments, "--run-dir", folder)
    assert again.status == 0
    assert "finished already" in again.out
    assert again.out.splitlines()[-3:] == first.out.splitlines()[-3:]
    assert snapshot(folder) == before


def test_terminated_run_says_how_to_go_on_and_ends_as_if_nothing_had_happened(
    finished_quick, command, terminate, tmp_path
):
    folder, arguments, _ = finished_quick
    stopped = terminate(command, quick.Quick, *arguments, "--run-dir", tmp_path / "run")
    assert stopped.status == 130
    last = stopped.err.splitlines()[-1]
    assert "progress is saved" in last and f"--run-dir {tmp_path / 'run'}" in last
    assert "Traceback" not in stopped.err
    assert not (tmp_path / "run" / "result.json").exists()

    resumed = command(quick.Quick, *arguments, "--run-dir", tmp_path / "run")
    assert resumed.status == 0
    assert "resuming after step 3" in resumed.out
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    one, other = (row_of(path) for path in (folder, tmp_path / "run"))
    assert one["metrics"] == other["metrics"]


@pytest.mark.slow
def test_run_on_one_device_goes_on_with_several(finished_ptb, command, terminate, tmp_path):
    arguments, folder = (*finished_ptb.arguments, "--model", "dynamic:3"), tmp_path / "whole"
    assert command(PTB, *arguments, "--run-dir", folder).status == 0
    assert terminate(command, PTB, *arguments, "--run-dir", tmp_path / "run").status == 130
    resumed = command(*(PTB, *arguments, "--run-dir", tmp_path / "run", "--devices", 2, "--parallel", "pmap"))
    assert resumed.status == 0, resumed.err
    assert "resuming after step 18" in resumed.out
    assert "2 of 8 cpu device(s)" in resumed.out.splitlines()[2]
    one, other = (row_of(path) for path in (folder, tmp_path / "run"))
    assert (len(one["devices"]), len(other["devices"])) == (1, 2)
    assert one["metrics"].keys() == other["metrics"].keys()
    for name, metric in one["metrics"].items():
        assert other["metrics"][name]["mean"] == pytest.approx(metric["mean"], rel=1e-4)
    configs = [load(path / "config.json") for path in (folder, tmp_path / "run")]
    assert [config.pop("about") and config for config in configs] == [configs[0]] * 2


@pytest.mark.slow
def test_released_preset_runs(command, corpus_folder, tmp_path):
    small = ("--features", 4, "--agent-features", 2, "--num-steps", 5, "--batch-size", 4, "--epochs", 1)
    arguments = ("--data", corpus_folder, *small, "--preset", "released")
    outcome = command(PTB, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    found = settings_of(tmp_path / "run")
    assert (found["num_layers"], found["restart_buffer"], found["agent_input"]) == (3, True, "mean")
    metrics = row_of(tmp_path / "run")["metrics"]
    assert metrics["test_perplexity"] == metrics["test_perplexity_sampled"]


def test_without_data_the_embedded_corpus_is_used(command, here, monkeypatch):
    trained_on = []
    monkeypatch.setattr(
        "dynskip_jax.experiments.train.run", lambda _, models, data, *__, **___: trained_on.append(data)
    )
    outcome = command(PTB, "--model", "lstm")
    assert outcome.status == 0, outcome.err
    assert [data.name for data in trained_on] == ["pydoc-topics"]
    assert outcome.out.startswith("data: pydoc-topics, ") and "no PTB" in outcome.out.splitlines()[0]
    assert "preset: small (the default)" in outcome.out


@pytest.mark.slow
def test_without_data_the_embedded_corpus_is_named_everywhere(command, here, monkeypatch):
    """All output names the embedded corpus.

    Without --run-dir, the path of the run folder contains task and model, and nothing is written elsewhere.
    A loaded run keeps the embedded corpus, even if the machine has other data by then.
    """
    small = ("--features", 4, "--epochs", 1, "--num-steps", 50, "--batch-size", 100)
    outcome = command(PTB, "--model", "lstm", *small)
    assert outcome.status == 0, outcome.err
    assert [path.name for path in here.iterdir()] == ["runs"]
    (folder,) = (here / "runs" / "ptb").iterdir()
    assert folder.name.startswith("lstm-")
    name = "pydoc-topics"
    assert outcome.out.startswith(f"data: {name}, ")
    assert "no PTB" in outcome.out.splitlines()[0]
    assert "preset: small (the default)" in outcome.out
    assert f"ptb on {name}" in outcome.out
    assert "not comparable" in outcome.out and "paper" not in outcome.out
    assert load(folder / "result.json")["dataset"]["name"] == name
    assert load(folder / "config.json")["dataset"]["name"] == name
    (here / "data" / "ptb").mkdir(parents=True)
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(here / "data"))
    assert load_run(folder).data().name == name


@pytest.mark.parametrize("name", ["ptb", "number_prediction"])
@pytest.mark.slow
def test_run_in_bfloat16(name, command, corpus_folder, small_number_prediction, tmp_path):
    main, arguments, metric = {
        "ptb": (PTB, ("--data", corpus_folder, *SMALL_PTB), "dev_perplexity"),
        "number_prediction": (NUMBERS, SMALL_NUMBERS, "dev_nll"),
    }[name]
    found = []
    for precision in ("f32", "bf16"):
        folder = tmp_path / precision
        options = ("--model", "lstm", "--epochs", 2, "--precision", precision, "--run-dir", folder)
        assert command(main, *arguments, *options).status == 0
        assert settings_of(folder)["precision"] == precision
        found.append([record[metric][0] for record in records(folder) if record["split"] == "dev"])
    wide, narrow = found
    assert narrow != wide and narrow == pytest.approx(wide, rel=0.02)


# --- Several models, several seeds, the other experiment ---


def test_compared_models_have_a_folder_each_and_one_result(compared_ptb, command):
    folder, arguments, outcome = compared_ptb
    assert {path.name for path in folder.iterdir() if path.is_dir()} >= {"lstm", "dynamic-3"}
    top = load(folder / "result.json")
    assert top["experiment"] == "ptb" and top["dataset"]["name"] == "letters"
    assert [row["model"] for row in top["rows"]] == ["lstm", "dynamic:3"]
    for row, name in zip(top["rows"], ("lstm", "dynamic-3"), strict=True):
        assert row == row_of(folder / name)
        assert row["seeds"] == [0, 1]
        for metric in row["metrics"].values():
            # A metric is a number, or a list of numbers for the fractions of each k.
            np.testing.assert_allclose(metric["mean"], np.mean(metric["per_seed"], axis=0))
            np.testing.assert_allclose(metric["std"], np.std(metric["per_seed"], axis=0, ddof=1))
        assert len(set(row["metrics"]["test_perplexity"]["per_seed"])) == 2
    pictures = {"lstm": set(), "dynamic-3": {"policy_1.png", "skips_by_word.png"}}
    for name, of_choices in pictures.items():
        paths = list((folder / name / "plots").iterdir())
        assert {path.name for path in paths} == {"learning_curve.png"} | of_choices
        for path in paths:
            assert_picture(path)
    assert_picture(folder / "plots" / "dev_perplexity.png")
    rows = [line for line in outcome.out.splitlines() if "│" in line]
    assert sum("lstm" in line for line in rows) == sum("dynamic:3" in line for line in rows) == 1
    assert all("±" in line for line in rows[-2:])

    before = {name: snapshot(folder / name) for name in ("lstm", "dynamic-3")}
    again = command(PTB, *arguments, "--run-dir", folder)
    assert again.status == 0 and again.out.count("finished already") == 2
    assert {name: snapshot(folder / name) for name in before} == before


def check_number_prediction(finished, length, max_skip):
    folder, _, outcome = finished
    assert outcome.out.startswith(f"data: number_prediction/length_{length}, made for a test (train 60")
    whole, result = load(folder / "result.json"), row_of(folder)
    assert (whole.keys(), result.keys()) == (RESULT_KEYS, ROW_KEYS)
    assert whole["experiment"] == "number_prediction"
    assert whole["dataset"]["name"] == f"number_prediction/length_{length}"
    assert whole["dataset"]["sizes"] == {"train": 60, "dev": 20, "test": 20}
    # One feature for each symbol, and at length 21 also one for each position.
    features = {11: 10, 21: 10 + 21, 15: 14}[length]
    agent = (4 + features) * 2 + 2 + 2 * max_skip + max_skip
    assert result["parameters"] == 4 * (features * 4 + 4 * 4 + 4) + 4 * 10 + 10 + agent
    for split in ("dev", "test"):
        for suffix in ("", "_greedy", "_sampled", "_averaged"):
            values = result["metrics"][f"{split}_accuracy{suffix}"]["per_seed"]
            assert len(values) == 2
            # Fractions of whole examples: padding of the last batch is not counted.
            assert all(0 <= value <= 1 and round(value * 20, 3) % 1 == 0 for value in values)
    assert all(0 <= value <= 1 for value in result["metrics"]["test_exact_decisions"]["per_seed"])
    pictures = {path.name for path in (folder / "plots").iterdir()}
    chains = {"chain_visits_hop_1.png", "chain_visits_hop_2.png"}
    assert pictures == {"learning_curve.png", "policy_1.png", "skips_by_position.png"} | (
        chains if length == 21 else {"last_skip_against_truth.png"}
    )
    for name in pictures:
        assert_picture(folder / "plots" / name)
    assert ("paper: LSTM" in outcome.out) == (length != 15)
    # The fractions of each k sum to 1, and give the mean k.
    shares, ks = np.array(result["metrics"]["dev_agent_share_1"]["per_seed"]), np.arange(1, max_skip + 1)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(shares @ ks, result["metrics"]["dev_agent_skip_1"]["per_seed"], rtol=1e-5)
    # The progress after training counts two splits in three modes, and the plots.
    assert "evaluating and drawing  100.0%  8/8" in outcome.err
    # 60 examples in batches of 20 give 3 steps per epoch.
    dev = [record for record in records(folder) if record["split"] == "dev"]
    assert [(record["step"], record["examples"]) for record in dev] == [(3, 60), (6, 120)]


def test_number_prediction_run(finished_numbers):
    check_number_prediction(finished_numbers, 11, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "max_skip"), [(21, 10), (15, 14)])
def test_number_prediction_run_of_another_length(length, max_skip, command, finished_numbers, tmp_path):
    """Choices are relaxed in the first epoch and sampled in the second."""
    arguments = ("--length", length, "--model", f"dynamic:{max_skip}", *finished_numbers.arguments)
    arguments += ("--relaxed-epochs", 1)
    outcome = command(NUMBERS, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    check_number_prediction((tmp_path / "run", arguments, outcome), length, max_skip)


def test_learning_rates_swept_over_are_one_run_and_each_a_row(swept_quick, command):
    folder, arguments, outcome = swept_quick
    rows = load(folder / "result.json")["rows"]
    assert [row["model"] for row in rows] == ["lstm", "fixed:2"]
    row = row_of(folder / "fixed-2")
    assert row == rows[1] and row["seeds"] == [0, 1]
    assert [each["value"] for each in row["sweep"]] == [{"learning_rate": rate} for rate in (0.001, 0.01)]
    for each in row["sweep"]:
        assert len(each["metrics"]["test_accuracy"]["per_seed"]) == 2
        assert f"rate={each['value']['learning_rate']}" in outcome.out
    # The best value on dev represents the sweep.
    best = max(row["sweep"], key=lambda each: each["metrics"]["dev_accuracy"]["mean"])
    assert (row["selected"], row["metrics"]) == (best["value"], best["metrics"])
    for name in ("test_accuracy_over_learning_rate.png", "learning_curve.png"):
        assert_picture(folder / "fixed-2" / "plots" / name)
    (dev,) = (record for record in records(folder / "fixed-2") if record["split"] == "dev")
    assert len(dev["dev_accuracy"]) == 4
    again = command(quick.Quick, *arguments, "--run-dir", folder)
    assert again.status == 0 and again.out.count("finished already") == 2
    other = command(quick.Quick, *arguments, "--learning-rate", "0.001,0.1", "--run-dir", folder)
    assert_user_error(other, "learning_rate was [0.001, 0.01] and is now [0.001, 0.1]")


@pytest.mark.slow
def test_a_sweep_is_one_run_and_each_value_a_row(swept_numbers, command):
    folder, arguments, outcome = swept_numbers
    rows = load(folder / "result.json")["rows"]
    assert [row["model"] for row in rows] == ["lstm", "dynamic:10"]
    # A model that samples nothing has no metrics of samples.
    assert ["test_accuracy_sampled" in row["metrics"] for row in rows] == [False, True]
    lstm, dynamic = (row_of(folder / name) for name in ("lstm", "dynamic-10"))
    assert "sweep" not in lstm  # it has neither λ nor an agent with a K
    assert [row["value"] for row in dynamic["sweep"]] == [
        {"mix": mix, "max_skip": K} for mix in (0.1, 0.9) for K in (2, 10)
    ]
    assert dynamic["seeds"] == [0, 1]
    for row in dynamic["sweep"]:
        assert len(row["metrics"]["test_accuracy"]["per_seed"]) == 2
        assert f"λ={row['value']['mix']}, K={row['value']['max_skip']}" in outcome.out
    # The best value on dev represents the sweep.
    best = max(dynamic["sweep"], key=lambda row: row["metrics"]["dev_accuracy"]["mean"])
    selected = next(row for row in dynamic["sweep"] if row["value"] == dynamic["selected"])
    assert selected["metrics"]["dev_accuracy"]["mean"] == best["metrics"]["dev_accuracy"]["mean"]
    assert dynamic["metrics"] == selected["metrics"]
    for name in ("dev_accuracy_over_mix.png", "dev_accuracy_over_max_skip.png", "learning_curve.png"):
        assert_picture(folder / "dynamic-10" / "plots" / name)
    (dev,) = (record for record in records(folder / "dynamic-10") if record["split"] == "dev")
    assert len(dev["dev_accuracy"]) == 8

    again = command(NUMBERS, *arguments, "--run-dir", folder)
    assert again.status == 0 and again.out.count("finished already") == 2
    other = command(NUMBERS, *arguments, "--mix", "0.1,0.8", "--run-dir", folder)
    assert_user_error(other, "mix was [0.1, 0.9] and is now [0.1, 0.8]")


@pytest.mark.slow
def test_number_prediction_released_preset_runs(command, small_number_prediction, tmp_path):
    arguments = ("--preset", "released", "--features", 4, "--batch-size", 20, "--epochs", 1)
    outcome = command(NUMBERS, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    found = settings_of(tmp_path / "run")
    assert (found["reward"], found["agent_features"], found["mix"]) == ("correct", 10, 1.0)
    metrics = row_of(tmp_path / "run")["metrics"]
    assert metrics["test_accuracy"] == metrics["test_accuracy_sampled"]


# --- Runs that cannot go on ---


def test_a_run_whose_dev_metric_is_never_a_number_has_no_result(command, tmp_path, monkeypatch):
    """Such a run once wrote a result with the initial parameters."""
    evaluate = Learner.evaluate
    monkeypatch.setattr(
        Learner,
        "evaluate",
        lambda *args, **how: {name: value * np.nan for name, value in evaluate(*args, **how).items()},
    )
    folder = tmp_path / "run"
    outcome = command(quick.Quick, "--devices", 1, "--run-dir", folder)
    assert outcome.status == 2 and "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: the dev loss or metric of seed 0 is not a finite")
    assert not (folder / "result.json").exists()


def test_ctrl_c_outside_training_is_one_line(command, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dynskip_jax.data.load_number_prediction", interrupt)
    outcome = command(NUMBERS)
    assert outcome.status == 130 and outcome.err == "interrupted\n"


def test_a_place_that_is_not_ones_own_is_one_line(command, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "plots")

    monkeypatch.setattr("dynskip_jax.data.load_number_prediction", forbidden)
    outcome = command(NUMBERS)
    assert outcome.status == 2
    assert outcome.err == "error: Permission denied (plots): name a place that you may read and write\n"


def more_than_a_device_has():
    jnp.zeros(1 << 50).block_until_ready()


def more_than_the_host_has():
    raise MemoryError


@pytest.mark.parametrize("needs", [more_than_a_device_has, more_than_the_host_has])
def test_too_little_memory_is_one_line(needs):
    assert_user_error(execute(needs), "Out of memory", "smaller")


def test_a_full_disk_is_one_line(command, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")

    monkeypatch.setattr(RunDir, "log", full)
    outcome = command(quick.Quick, "--devices", 1, "--run-dir", tmp_path / "run")
    assert outcome.status == 2 and "Traceback" not in outcome.err
    said = "error: No space left on device (metrics.jsonl): make room, then the same command goes on"
    assert outcome.err.splitlines()[-1] == said
