"""Check that users can name their own classes on the command line, and that run folders run no
code.
"""

import json
import shutil
import sys
import textwrap

import pytest
from commands import PTB, SMALL_NUMBERS, assert_user_error, execute, forge, load, succeed, tool
from quick import Quick, QuickSettings

from dynskip_jax import load_run
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.config.settings import names_in, replace
from dynskip_jax.errors import UserError
from dynskip_jax.runs.pieces import make_time_skip
from dynskip_jax.runs.spec import make_spec

PIECES = """
    import dataclasses
    from pathlib import Path
    from dynskip_jax import functional as F

    Path(__file__).with_name("ran").touch()

    @dataclasses.dataclass(frozen=True)
    class Near(F.Fixed):
        pass

    @dataclasses.dataclass(frozen=True)
    class Cell(F.GRU):
        version: int = 1
"""
SMALL = (*SMALL_NUMBERS, "--epochs", 1, "--preset", "paper")


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    """Write a module of users' classes into the current folder, without importing it, and return
    its mark.
    """
    (tmp_path / "my_pieces.py").write_text(textwrap.dedent(PIECES))
    (tmp_path / "broken_pieces.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield tmp_path / "ran"
    sys.modules.pop("my_pieces", None)


def spec_of(name, **given):
    return make_spec(name, replace(QuickSettings(), **given), may_import=True)


def test_arguments_and_settings_reach_the_piece(pieces):
    skip = spec_of("my_pieces:Near(3)", mix=0.25).skip
    assert (type(skip).__name__, skip.max_skip, skip.mix) == ("Near", 3, 0.25)
    skip = spec_of("my_pieces:Near(max_skip=3, mix=1.0)", mix=0.25).skip
    assert (skip.max_skip, skip.mix) == (3, 1.0)
    cell = spec_of("lstm", transition="my_pieces:Cell(version=2024)").transition
    assert (type(cell).__name__, cell.version) == ("Cell", 2024)  # no number of layers
    assert names_in("lstm, a:B(1,2),c:D(x=(1,2))") == ("lstm", "a:B(1,2)", "c:D(x=(1,2))")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:Near(3)", "no_such_module"),
        ("broken_pieces:Near(3)", "ZeroDivisionError('division by zero')"),
        ("my_pieces:Far(3)", "no class Far"),
        ("my_pieces:Near(open('x'))", "arguments are numbers"),
        ("my_pieces:Near(3, max_skip=4)", "multiple values for argument 'max_skip'"),
        (f"my_pieces:Near({'(' * 3000}3{')' * 3000})", "arguments are numbers"),
        ("my_pieces:Cell()", "derived from TimeSkip"),
    ],
)
def test_what_is_wrong_with_a_piece_is_said_in_one_line(pieces, name, part):
    with pytest.raises(UserError) as error:
        spec_of(name)
    assert part in str(error.value) and "\n" not in str(error.value)


# --- Folders of strangers ---


@pytest.mark.parametrize("name", ["model", "transition"])
def test_a_config_file_runs_no_code(pieces, name, finished_quick, tmp_path):
    folder = shutil.copytree(finished_quick.folder, tmp_path / "run")
    config, result = load(folder / "config.json"), load(folder / "result.json")
    if name == "transition":
        config["settings"]["model"]["transition"] = "my_pieces:Cell"
    else:
        config["model"] = result["rows"][0]["model"] = "my_pieces:Near(3)"
    (folder / "config.json").write_text(json.dumps(config))
    forge(folder, result=result)
    assert_user_error(
        execute(Quick, "explain", "--run-dir", folder), "my_pieces", "imports no code"
    )
    assert not pieces.exists()


@pytest.mark.parametrize("code", ["my_pieces:Near", "dynskip_jax.cli.main:start", None])
def test_no_command_runs_code_that_a_folder_names(pieces, finished_ptb, code, tmp_path):
    folder = shutil.copytree(finished_ptb.folder, tmp_path / "run")
    config = load(folder / "config.json")
    config["code"] = config["experiment"] = code
    (folder / "config.json").write_text(json.dumps(config))
    forge(folder)
    for name in ("explain", "generate", "evaluate"):
        assert_user_error(execute(PTB, name, "--run-dir", folder), "experiment")
    outcome = succeed(tool("report"), folder)
    assert "all metrics are shown" in outcome.out
    assert not pieces.exists()
    execute(tool("report"), folder, "--code", "my_pieces")  # but code that the command line names
    assert pieces.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small_generated_data")
def test_a_run_of_a_piece_trains_and_is_read_only_where_its_module_is_named(pieces, tmp_path):
    folder, numbers = tmp_path / "run", find_experiment("number_prediction")
    succeed(numbers, "--model", "my_pieces:Near(3)", *SMALL, "--run-dir", folder)
    assert load_run(folder).spec.skip.max_skip == 3  # this process has imported the module
    (folder / "note").touch()  # the changed folder is read again, see `read_once`
    del sys.modules["my_pieces"]
    reading = ("explain", "--run-dir", folder)
    refused = execute(numbers, *reading)
    assert_user_error(refused, "--code my_pieces")
    assert "restore" not in refused.err  # nothing is wrong with the folder
    assert "my_pieces" not in sys.modules
    succeed(numbers, *reading, "--code", "my_pieces")


@pytest.mark.parametrize("task", ["agreement", "recall"])
def test_settings_without_a_flag_reach_the_skip(task):
    """Regression: agents chose among the states before the text, which these tasks mask."""
    settings = find_experiment(task).settings()
    assert make_time_skip("dynamic:5", settings, may_import=False).empty_slots == "masked"
