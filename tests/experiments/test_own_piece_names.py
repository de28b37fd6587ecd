"""Check that users can name their own classes on the command line, and that run folders import nothing."""

import sys
import textwrap

import pytest
from commands import assert_user_error, execute

from dynskip_jax import load_run
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.number_prediction import NumberPrediction
from dynskip_jax.experiments.settings import Run, Settings, resolve

PIECES = """
    import dataclasses
    from dynskip_jax import functional as F

    @dataclasses.dataclass(frozen=True)
    class Near(F.Fixed):
        pass

    @dataclasses.dataclass(frozen=True)
    class Cell(F.GRU):
        pass
"""
SMALL = ("--features", 4, "--batch-size", 20, "--epochs", 1, "--preset", "paper", "--devices", 1)


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    """Write a module of users' classes into the current folder, without importing it."""
    (tmp_path / "my_pieces.py").write_text(textwrap.dedent(PIECES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield
    sys.modules.pop("my_pieces", None)


def settings(**given):
    return resolve(Settings, {"small": {}}, "small", given).settings


def test_arguments_and_settings_reach_the_piece(pieces):
    spec = make_spec("my_pieces:Near(3)", settings(mix=0.25), import_code=True)
    assert (type(spec.skip).__name__, spec.skip.max_skip, spec.skip.mix) == ("Near", 3, 0.25)
    spec = make_spec("my_pieces:Near(max_skip=3, mix=1.0)", settings(mix=0.25), import_code=True)
    assert (spec.skip.max_skip, spec.skip.mix) == (3, 1.0)
    cell = make_spec("lstm", settings(transition="my_pieces:Cell"), import_code=True).transition
    assert type(cell).__name__ == "Cell"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:Near(3)", "no_such_module"),
        ("my_pieces:Far(3)", "no class Far"),
        ("my_pieces:Near(open('x'))", "arguments are numbers"),
        ("my_pieces:Near(3, nonsense=1)", "nonsense"),
        ("my_pieces:Cell()", "derived from TimeSkip"),
    ],
)
def test_what_is_wrong_with_a_piece_is_said_in_one_line(pieces, name, part):
    with pytest.raises(UserError) as error:
        make_spec(name, settings(), import_code=True)
    assert part in str(error.value) and "\n" not in str(error.value)


def test_names_with_commas_inside_brackets_are_one_model():
    assert Run(compare="lstm, a:B(1,2),c:D(x=(1,2))").models("") == ("lstm", "a:B(1,2)", "c:D(x=(1,2))")


@pytest.mark.slow
@pytest.mark.usefixtures("small_number_prediction")
def test_a_run_of_a_piece_trains_and_is_read_only_where_its_module_is_named(pieces, tmp_path):
    folder = tmp_path / "run"
    outcome = execute(NumberPrediction, "--model", "my_pieces:Near(3)", *SMALL, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    assert load_run(folder).spec.skip.max_skip == 3  # this process has imported the module
    (folder / "note").touch()  # the changed folder is read again, see `read_once`
    del sys.modules["my_pieces"]
    reading = ("explain", "--run-dir", folder)
    assert_user_error(execute(NumberPrediction, *reading), "--code my_pieces")
    assert "my_pieces" not in sys.modules
    outcome = execute(NumberPrediction, *reading, "--code", "my_pieces")
    assert outcome.status == 0, outcome.err
