"""Check each task from its files to its table: it trains, is resumed, and reads a text."""

import pytest
import small_runs
from commands import assert_user_error, execute, load, row_of, succeed

from dynskip_jax import load_run
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.errors import UserError

# A text to read, and a metric of test.
TASKS = {
    "ptb": ("a b", "test_perplexity"),
    "code": ("film = the + it", "test_names_mrr"),
    "conll2003": ("Peter rejects Bonn", "test_f1"),
    "pos": ("Peter rejects Bonn", "test_accuracy"),
    "imdb": ("it was a film", "test_accuracy"),
    "sst": ("it was a film", "test_accuracy"),
    "sick": ("a film\tthe great film", "test_pearson"),
    "classify": ("it was a film", "test_macro_f1"),
    "agreement": ("w1 a3 w0 b2 w5 )b )a", "test_accuracy"),
    "recall": ("17 5000 3", "test_accuracy_twice"),
    "number_prediction": ("3 1 4 1 5 9 2 6 5 3 4", "test_accuracy"),
}


@pytest.fixture
def trained(tmp_path, small_generated_data):
    def train(name, *flags):
        arguments = [*small_runs.command(name, tmp_path)[1:], "--epochs", 1, *flags]
        return succeed(find_experiment(name), *arguments, "--run-dir", tmp_path / "run").out

    return train


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_trains_is_resumed_and_reads_a_text(name, trained, tmp_path):
    experiment, out, (text, metric) = find_experiment(name), trained(name), TASKS[name]
    row = row_of(tmp_path / "run")
    assert row["model"] in out and metric in row["metrics"]
    assert "finished already" in trained(name)
    run = load_run(tmp_path / "run")
    assert (
        run.data().fingerprint == load(tmp_path / "run" / "config.json")["dataset"]["fingerprint"]
    )
    if "predict" in experiment.commands:
        read = succeed(
            experiment, "predict", "--run-dir", tmp_path / "run", standard_input=f"{text}\n"
        )
        assert len(read.out.strip().split("\n\n")) == 1  # taggers write a line for each word
    reading = run.read(text)
    marks = {"ptb": 1, "code": 2}.get(name, 0)  # <eos>, and <file> and <newline>
    assert len(reading.words) - marks == len(text.split()) and reading.prediction
    if name in ("agreement", "recall", "number_prediction"):
        with pytest.raises(UserError, match="'9999'"):
            run.read("9999")


@pytest.mark.parametrize(
    ("name", "flags", "part"),
    [
        ("agreement", ("--length", 4), "lengths from 5"),
        ("number_prediction", ("--length", 10), "use --length 21"),
        *((name, (), "--data") for name in ("classify", "imdb", "sst", "sick")),
        *(
            (name, ("--data", "nowhere"), "nowhere")
            for name in ("code", "imdb", "sst", "sick", "conll2003", "ptb")
        ),
        ("conll2003", ("--dataset", "conll2000"), "conll2000.zip"),
        ("ptb", ("--preset", "paper"), "--dataset pydoc-topics"),
        ("ptb", ("--dropout", "0.1,0.2,0.3,0.4"), "--dropout of a language model"),
        ("sst", ("--no-train-embeddings",), "--train-embeddings"),
        # Names are checked before data are looked for.
        ("imdb", ("--model", "dynamik:3"), "unknown model 'dynamik:3'"),
    ],
)
def test_what_a_task_cannot_do_is_said_in_one_line(name, flags, part, here):
    assert_user_error(execute(find_experiment(name), *flags), part)
    assert not list(here.iterdir())
