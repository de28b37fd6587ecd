"""Check that input which cannot be used gives a one-line error, before anything is written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from commands import (
    COMMANDS,
    SMALL_NUMBERS,
    SMALL_PTB,
    Outcome,
    assert_user_error,
    load,
    snapshot,
    write_result,
)

from dynskip_jax.experiments import agreement, conll2003, imdb, number_prediction, ptb
from dynskip_jax.training.files import FORMAT

PTB, NUMBERS, AGREEMENT = ptb.PTB, number_prediction.NumberPrediction, agreement.Agreement
TAGGER, CLASSIFIER = conll2003.CoNLL2003, imdb.IMDB


def label(value):
    return " ".join(map(str, value)) if isinstance(value, tuple) and str(value[0])[:2] == "--" else ""


# --- Flags ---

OF_BOTH = [
    (("--model", "nope"), ("unknown model 'nope'", "dynamic:k")),
    (("--model", "dynamic:0"), ("at least 1",)),
    (("--model", "dynamic:-3"), ("at least 1",)),
    (("--model", "dynamic:x"), ("whole number",)),
    (("--model", "dynamic"), ("dynamic:k",)),
    (("--model", ""), ("unknown model ''",)),
    (("--model", "lstm,dynamic:5"), ("--compare",)),
    (("--model", "lstm", "--compare", "lstm,dynamic:5"), ("--model", "--compare", "not both")),
    (("--compare", "lstm,nope"), ("unknown model 'nope'",)),
    (("--compare", "lstm, lstm"), ("--compare names lstm twice",)),
    (("--preset", "nope"), ("unknown preset 'nope'", "paper", "released")),
    (("--mix", "1.5"), ("--mix", "between 0 and 1", "1.5")),
    (("--mix", "-0.1"), ("--mix", "between 0 and 1", "-0.1")),
    (("--mix", "nan"), ("--mix", "between 0 and 1", "nan")),
    (("--mix", "much"), ("--mix: takes numbers, several separated by commas; got 'much'",)),
    (("--mix", "0.1,much"), ("--mix: takes numbers",)),
    (("--mix", "0.5,0.25,0.5"), ("--mix", "twice", "0.5,0.25,0.5")),
    (("--mix", "0.5,1.5"), ("--mix", "between 0 and 1", "1.5")),
    (("--mix", "0.5", "--mix"), ("--mix", "expected one argument")),
    (("--max-skip", "2.5"), ("--max-skip: takes whole numbers",)),
    (("--max-skip", "4,4"), ("--max-skip", "twice")),
    (("--max-skip", "0,2"), ("--max-skip must be at least 1",)),
    (("--model", "dynamic:10", "--max-skip", "4,12"), ("--max-skip 12", "dynamic:10", "larger k")),
    (("--model", "lstm", "--mix", "0.25"), ("--mix has no effect without --model dynamic:k", "leave it out")),
    (("--model", "fixed:3", "--mix", "0.1,0.5"), ("fixed:3", "no mix", "dynamic:10")),
    (("--model", "fixed:3", "--max-skip", "2"), ("--max-skip has no effect", "dynamic:k")),
    (("--compare", "lstm,fixed:3", "--entropy-coef", "0,1"), ("--entropy-coef has no effect", "dynamic:k")),
    (("--model", "attention:5", "--temperature", "1,2"), ("--temperature has no effect",)),
    (("--epochs", "0"), ("--epochs", "at least 1")),
    (("--epochs", "2.5"), ("--epochs: takes a whole number; got '2.5'",)),
    (("--epochs", "many"), ("--epochs: takes a whole number; got 'many'",)),
    (("--epochs", "inf"), ("--epochs: takes a whole number; got 'inf'",)),
    (("--batch-size", "0"), ("--batch-size", "at least 1")),
    (("--batch-size", "100000"), ("--batch-size",)),
    (("--seeds", "0"), ("--seeds", "at least 1")),
    (("--features", "-1"), ("--features", "at least 1")),
    (("--seed", "-1"), ("--seed", "negative")),
    (("--seed", "4294967296"), ("seeds lie between 0 and 4,294,967,295, got 4294967296",)),
    (("--seed", "4294967295", "--seeds", "2"), ("4294967295 and 2 of them",)),
    (("--seed", "3", "--seeds", "1,5"), ("--seed has no effect beside a list of --seeds: leave one out",)),
    (("--model", "none"), ("there is no model 'none': --model lstm trains the plain LSTM",)),
    (("--patience", "-1"), ("--patience", "negative")),
    (("--dropout", "1.0"), ("--dropout", "[0, 1)")),
    (("--forget-bias", "inf"), ("--forget-bias must be a finite number, got inf",)),
    (("--learning-rate", "0"), ("--learning-rate", "positive")),
    (("--learning-rate", "inf"), ("--learning-rate must be positive and finite, got inf",)),
    (("--learning-rate", "1e999"), ("--learning-rate must be positive and finite, got inf",)),
    (("--learning-rate", "0.1,nan"), ("--learning-rate must be positive and finite, got nan",)),
    (("--clip", "0"), ("--clip", "positive")),
    (("--rl-coef", "-1"), ("--rl-coef must not be negative",)),
    (("--rl-coef", "nan"), ("--rl-coef must not be negative", "nan")),
    (("--entropy-coef", "-1"), ("--entropy-coef must not be negative",)),
    (("--discount", "1.5"), ("--discount", "1.5")),
    (("--temperature", "0"), ("--temperature", "positive")),
    (("--reward", "nope"), ("--reward", "'nope'", "correct")),
    (("--evaluation-mode", "nope"), ("--evaluation-mode", "greedy")),
    (("--precision", "f16"), ("--precision", "f32 or bf16")),
    (("--transition", "nope"), ("nope", "lstm")),
    (("--depth-skip", "nope"), ("nope", "gates")),
    (("--agent-input", "nope"), ("nope", "previous", "mean")),
    (("--relaxation", "hard", "--relaxed-epochs", "2"), ("--relaxation", "'hard'")),
    (("--relaxation", "none", "--relaxed-epochs", "2"), ("--relaxed-epochs has no effect", "--relaxation")),
    (("--baseline", "rollouts", "--rollouts", "1"), ("rollouts", "at least 2")),
    (("--rollouts", "0"), ("--rollouts", "at least 1")),
    (("--devices", "0"), ("--devices", "at least 1")),
    (("--devices", "9"), ("--devices 9", "has 8")),
    (("--devices", "8", "--batch-size", "20"), ("--batch-size 20", "8 devices", "multiple of 8")),
    (("--devices", "2", "--parallel", "xmap"), ("--parallel", "xmap", "jit or pmap")),
    (("--run-dir", "a\0b"), ("cannot use the run folder",)),
    (("--nonsense", "1"), ("--nonsense", "--help lists the flags")),
    (("--epoch", "1"), ("--epoch", "--help lists the flags")),  # not an abbreviation of --epochs
    (("lstm",), ("no command 'lstm'", "train, ", "explain", "--help")),
    (("train", "lstm"), ("unrecognized arguments: lstm",)),
    (("explain", "--text", "a"), ("--run-dir is needed", "--help")),
    (("explain", "--run-dir", "nowhere"), ("nowhere is not a run folder",)),
    (("explain", "--run-dir", "a\0b"), ("is not a run folder",)),
    (("explain", "--run-dir", "nowhere", "--seed", "1"), ("--seed", "--help")),
    (("explain", "--run-dir", "nowhere", "--of-seed", "first"), ("--of-seed: takes a whole number",)),
]


@pytest.mark.parametrize(("arguments", "parts"), OF_BOTH, ids=label)
@pytest.mark.parametrize("name", COMMANDS)
def test_senseless_flag_is_one_line_and_nothing_is_written(
    name, arguments, parts, command, corpus_folder, small_number_prediction, here
):
    if arguments[0].startswith("--"):
        small = ("--data", corpus_folder, *SMALL_PTB) if name == "ptb" else SMALL_NUMBERS
        arguments = (*small, *arguments)
    assert_user_error(command(COMMANDS[name], *arguments), *parts)
    assert snapshot(here) == {}


HISTOGRAM = ("--model", "dynamic:2", "--control", "histogram")
VIMCO = ("--estimator", "vimco", "--rollouts", "2", "--baseline", "none")


@pytest.mark.parametrize(
    ("main", "arguments", "parts"),
    [
        (PTB, ("--num-layers", "0"), ("--num-layers", "at least 1")),
        (PTB, ("--dataset", "nope"), ("no dataset 'nope'",)),
        (PTB, ("--plateau", "nan"), ("--plateau must be a finite number, got nan",)),
        (PTB, ("--char-maps", "5,x"), ("--char-maps: takes whole numbers",)),
        (PTB, (*VIMCO, "--entropy-coef", "0"), ("vimco", "each step")),
        (PTB, VIMCO, ("vimco", "exact entropy", "entropy_coef of 0")),
        (PTB, ("--baseline", "moving_average"), ("moving_average", "each step")),
        (PTB, ("--learning-rate", "1,2"), ("--learning-rate", "--agent-learning-rate none")),
        (PTB, ("--start-from", "nowhere", "--model", "lstm"), ("nowhere is not a run folder",)),
        (PTB, ("--data", "a\0b"), ("a\\x00b is not there",)),
        (NUMBERS, ("--depth-skip", "gates"), ("--depth-skip gates", "3 layers or more, got 1")),
        (PTB, ("--depth-skip", "gated_output"), ("--depth-skip gated_output", "3 layers or more, got 1")),
        (PTB, ("--control-of", "nowhere"), ("--control-of", "without --control histogram: leave it out")),
        (PTB, ("--average-interval", "3"), ("without --average non_monotone: leave it out, or add that",)),
        (PTB, ("--plateau", "1", "--decay-after", "3"), ("--decay-after", "without --plateau none: leave")),
        (PTB, ("evaluate", "--run-dir", "nowhere", "--steps", "9"), ("--steps", "without --method dynamic")),
        (TAGGER, ("--affix-features", "3"), ("--affix-features has no effect without --affixes: leave",)),
        (TAGGER, ("--decay", "0.05"), ("--decay 0.05: it is called --inverse-decay now",)),
        (CLASSIFIER, ("--dropout-hidden", "0.1"), ("--dropout-hidden", "without --num-layers 2 or more:")),
        (PTB, (*HISTOGRAM, "--control-of", "x", "--rates", "1,0"), ("--control-of and --rates",)),
        (PTB, ("--agent-init", "lecun"), ("--agent-init", "uniform or normal")),
        (NUMBERS, ("--agent-init", "uniform"), ("--agent-init", "one_hot")),
        (PTB, ("--dataset", "pydoc-topics", "--data", "nowhere"), ("comes with Python", "leave --data out")),
        (AGREEMENT, ("--data", "nowhere"), ("generated by a grammar", "leave --data out")),
        (PTB, ("predict",), ("no command 'predict'", "train, explain, oracle, generate, evaluate")),
        (NUMBERS, ("generate",), ("no command 'generate'", "train, predict, explain")),
        (NUMBERS, ("predict",), ("--run-dir is needed",)),
        (NUMBERS, ("--length", "10"), ("no length 10", "11", "21")),
        (NUMBERS, ("--length", "502"), ("no length 502",)),
        (NUMBERS, ("--rollouts", "1"), ("at least 2",)),
        (NUMBERS, ("--preset", "rollouts", "--relaxed-epochs", "2"), ("without --relaxation: leave it out",)),
        (NUMBERS, ("--estimator", "vimco", "--rollouts", "1"), ("at least 2",)),
        (NUMBERS, ("--positions", "all"), ("--positions", "'all'")),
    ],
    ids=label,
)
def test_senseless_flag_of_one_experiment(
    main, arguments, parts, command, corpus_folder, small_number_prediction, here
):
    if main is PTB and not {"--dataset", "--data", "predict", "evaluate"} & set(arguments):
        arguments = ("--data", corpus_folder, *SMALL_PTB, *arguments)
    assert_user_error(command(main, *arguments), *parts)
    assert snapshot(here) == {}


def real_process(*arguments, **environment):
    """Run the command of language models in a process of its own, and return its exit status and output."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments.ptb", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(ptb.__file__).parents[2])} | environment,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_error_of_a_real_process(here):
    """The error is one line, the exit status is 2, and nothing is written."""
    outcome = real_process("--epochs", 0)
    assert outcome == (2, "", "error: --epochs must be at least 1, got 0\n")
    assert snapshot(here) == {}


def test_errors_for_want_of_a_device_are_told_from_others(command, monkeypatch):
    def fail():
        raise AssertionError  # as JAX does, without a message

    with pytest.raises(AssertionError):
        command(fail)
    monkeypatch.setattr(jax, "devices", fail)
    assert_user_error(command(fail), f"JAX finds no device for JAX_PLATFORMS={jax.config.jax_platforms}: ")


# Without a GPU, JAX raises an error without a message for cuda, and one with a message for nowhere.
@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "nowhere"])
def test_training_on_devices_that_jax_does_not_have(platform, corpus_folder, here):
    arguments = ("--data", corpus_folder, "--model", "lstm", *SMALL_PTB)
    outcome = real_process(*arguments, JAX_PLATFORMS=platform, CUDA_VISIBLE_DEVICES="-1")
    assert_user_error(outcome, f"JAX_PLATFORMS={platform}: leave it out, or install JAX for it")
    assert snapshot(here) == {}


@pytest.mark.slow
def test_reading_on_devices_that_jax_does_not_have(finished_ptb):
    before = snapshot(finished_ptb.folder)
    arguments = ("generate", "--run-dir", finished_ptb.folder)
    outcome = real_process(*arguments, JAX_PLATFORMS="cuda", CUDA_VISIBLE_DEVICES="-1")
    assert_user_error(outcome, "JAX_PLATFORMS=cuda")
    assert snapshot(finished_ptb.folder) == before


# --- Data ---


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
    return ("test.txt", "UTF-8", "line 1")


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
    outcome = command(PTB, "--data", folder, *SMALL_PTB)
    assert_user_error(outcome, *parts)
    assert snapshot(tmp_path) == before


def test_data_asked_for_by_name_and_not_found(command, here):
    assert_user_error(command(PTB, "--dataset", "ptb", *SMALL_PTB), "ptb", "--data", "DYNSKIP_DATA_DIR")
    assert snapshot(here) == {}


# --- Run folders ---


@pytest.fixture
def copied(finished_ptb, tmp_path):
    """Return a copy of a finished run that a test may damage."""
    shutil.copytree(finished_ptb.folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("--features", 9), ("settings.model.features was 4 and is now 9",)),
        (("--seed", 1), ("settings.run.seed was 0 and is now 1",)),
        (("--seeds", 2), ("settings.run.seeds was 1 and is now 2",)),
        (("--forget-bias", 1), ("settings.model.forget_bias was 0.0 and is now 1.0",)),
        (("--learning-rate", "1,2"), ("learning_rate was 1.0 and is now [1.0, 2.0]",)),
        (("--precision", "bf16"), ('precision was "f32" and is now "bf16"',)),
        (("--epochs", 1), ("settings.training.epochs was 2 and is now 1",)),
        # A change of the epochs does not allow other changes.
        (("--epochs", 3, "--patience", 1), ("settings.training.patience was 2 and is now 1",)),
        (("--min-count", 100), ("dataset.fingerprint was",)),
        (("--model", "fixed:2"), ('model was "lstm" and is now "fixed:2"',)),
    ],
    ids=label,
)
def test_run_folder_of_other_settings_is_left_as_it_is(change, parts, copied, finished_ptb, command):
    before = snapshot(copied)
    outcome = command(PTB, *finished_ptb.arguments, *change, "--run-dir", copied)
    assert_user_error(outcome, "other settings", "--run-dir", *parts)
    assert snapshot(copied) == before


def test_one_model_does_not_become_several_in_its_folder(copied, command, corpus_folder):
    before = snapshot(copied)
    arguments = ("--data", corpus_folder, *SMALL_PTB, "--epochs", 2, "--compare", "dynamic:3,lstm")
    outcome = command(PTB, *arguments, "--run-dir", copied)
    assert_user_error(outcome, "other settings", 'model was "lstm" and is now not set')
    assert snapshot(copied) == before


def test_another_experiments_run_is_left_as_it_is(copied, command, small_number_prediction):
    before = snapshot(copied)
    outcome = command(NUMBERS, *SMALL_NUMBERS, "--run-dir", copied)
    assert_user_error(outcome, 'experiment was "ptb" and is now "number_prediction"')
    assert snapshot(copied) == before


@pytest.mark.parametrize("models", [("--model", "lstm"), ("--compare", "lstm,dynamic:3")])
def test_folder_that_is_no_run_is_left_as_it_is(models, command, corpus_folder, tmp_path):
    folder = tmp_path / "holiday"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(b"sea")
    outcome = command(PTB, "--data", corpus_folder, *models, *SMALL_PTB, "--run-dir", folder)
    assert_user_error(outcome, "holiday", "not a run", "--run-dir")
    assert snapshot(folder) == {Path("photo.jpg"): b"sea"}


def test_run_folder_that_is_a_file(command, corpus_folder, tmp_path):
    (tmp_path / "file").write_text("text")
    arguments = ("--data", corpus_folder, "--model", "lstm", *SMALL_PTB)
    assert_user_error(command(PTB, *arguments, "--run-dir", tmp_path / "file"), "is a file")
    assert (tmp_path / "file").read_text() == "text"


def test_run_whose_checkpoints_are_all_corrupt(copied, finished_ptb, command):
    (copied / "result.json").unlink()
    for path in (copied / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    metrics = (copied / "metrics.jsonl").read_bytes()
    outcome = command(PTB, *finished_ptb.arguments, "--run-dir", copied)
    assert_user_error(outcome, "none of the 2 checkpoints", "restore one", "--run-dir")
    assert (copied / "metrics.jsonl").read_bytes() == metrics


def rewrite(**changes):
    def change(run):
        """Replace entries of config.json; None removes an entry."""
        config = {**load(run / "config.json"), **changes}
        config = {name: value for name, value in config.items() if value is not None}
        (run / "config.json").write_text(json.dumps(config))
        write_result(run, load(run / "result.json"))

    return change


def old_format(run):
    """Write config.json as the first versions did, without a format."""
    config = load(run / "config.json")
    del config["format"]
    (run / "config.json").write_text(json.dumps(config))


def broken(text):
    return lambda run: (run / "config.json").write_bytes(text)


@pytest.mark.parametrize(
    ("damage", "of_training", "of_reading"),
    [
        (old_format, f"a run of format 1, and this version reads and writes format {FORMAT}", "format 1"),
        (
            rewrite(format=2),
            f"a run of format 2, and this version reads and writes format {FORMAT}",
            "format 2",
        ),
        (broken(b"{"), "config.json does not hold a valid configuration", "valid configuration"),
        (broken(b"[1]"), "config.json does not hold a valid configuration", "valid configuration"),
        (broken(b"\xff\xfe"), "config.json does not hold a valid configuration", "valid configuration"),
        (rewrite(settings=None), "settings.run.preset was not set", "config.json"),
        (rewrite(settings={"run": 3}), "settings.run was 3", "config.json"),
        (rewrite(settings={"run": {"seed": "x"}}), 'settings.run.seed was "x"', "config.json"),
        (rewrite(settings={"run": {"sead": 1}}), "settings.run.sead was 1", "config.json"),
    ],
    ids=lambda value: getattr(value, "__name__", "") or str(value)[:40],
)
def test_damaged_or_foreign_configuration(damage, of_training, of_reading, copied, finished_ptb, command):
    """Training in the folder is refused in one line, and so is reading it."""
    damage(copied)
    before = snapshot(copied)
    outcome = command(PTB, *finished_ptb.arguments, "--run-dir", copied)
    assert_user_error(outcome, of_training, "--run-dir")
    outcome = command(PTB, "explain", "--run-dir", copied, "--text", "a")
    assert_user_error(outcome, str(copied), of_reading)
    assert snapshot(copied) == before


def no_vocabulary(run):
    (run / "vocabulary.json").unlink()


def no_words(run):
    (run / "vocabulary.json").write_text("5")


def cut_vocabulary(run):
    (run / "vocabulary.json").write_text('["a", "b')


def no_result(run):
    (run / "result.json").unlink()


def cut_result(run):
    (run / "result.json").write_text('{"seeds": [0')


def list_as_result(run):
    (run / "result.json").write_text("[]")


def no_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def no_checkpoint_but_their_folder(run):
    no_checkpoints(run)
    (run / "checkpoints").mkdir()


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (no_vocabulary, "vocabulary.json"),
        (no_words, "vocabulary.json"),
        (cut_vocabulary, "vocabulary.json"),
        (no_result, "has not finished"),
        (cut_result, "result.json is not a JSON object"),
        (list_as_result, "result.json is not a JSON object"),
        (no_checkpoints, "no checkpoints"),
        (no_checkpoint_but_their_folder, "no checkpoints"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_run_that_cannot_be_read_back(damage, part, copied, command):
    damage(copied)
    before = snapshot(copied)
    assert_user_error(command(PTB, "explain", "--run-dir", copied, "--text", "a"), part)
    assert snapshot(copied) == before


@pytest.mark.slow
def test_a_run_whose_checkpoints_were_removed_and_their_folder_made_again(copied, finished_ptb, command):
    """The error is one line in a real process, too.

    Threads that outlive a command would write messages while the process exits.
    """
    no_checkpoints(copied)
    outcome = command(PTB, *finished_ptb.arguments, "--run-dir", copied)
    assert outcome.status == 0 and "finished already" in outcome.out
    assert snapshot(copied / "checkpoints") == {}
    before = snapshot(copied)
    assert_user_error(real_process("generate", "--run-dir", copied), "no checkpoints")
    assert snapshot(copied) == before
