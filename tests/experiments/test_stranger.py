"""Check that reading a run folder from somebody else runs no code that the folder names."""

import json
import shutil
import sys

import pytest
from commands import COMMANDS, assert_user_error, load, tool, write_result

from dynskip_jax import load_run
from dynskip_jax.errors import UserError

PAYLOAD = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass X: columns = {}\n"
READERS = {
    "explain": ("--text", "a b"),
    "oracle": (),
    "generate": (),
    "evaluate": (),
}


@pytest.fixture
def stranger(finished_ptb, tmp_path, monkeypatch):
    """Yield a function that makes a copied run folder name some code; check afterwards that it has not run.

    The module `payload` next to the folder leaves a file when it runs.
    """
    folder = tmp_path / "run"
    shutil.copytree(finished_ptb.folder, folder)
    (tmp_path / "payload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "payload", raising=False)

    def with_code(code):
        config = load(folder / "config.json")
        config["code"] = code
        config["experiment"] = code
        (folder / "config.json").write_text(json.dumps(config))
        write_result(folder, load(folder / "result.json"))
        return folder

    yield with_code
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "code", ["payload:X", "os:system", "dynskip_jax.experiments.cli:main", "payload", None]
)
def test_no_command_runs_code_that_a_folder_names(stranger, command, code):
    folder = stranger(code)
    for name, flags in READERS.items():
        assert_user_error(command(COMMANDS["ptb"], name, "--run-dir", folder, *flags), "experiment")
    with pytest.raises(UserError, match="experiment"):
        load_run(folder)


@pytest.mark.parametrize("code", ["payload:X", None])
def test_report_says_that_the_experiment_is_not_known_and_shows_all_metrics(stranger, command, code):
    outcome = command(tool("report"), stranger(code))
    assert outcome.status == 0 and "all metrics are shown" in outcome.out
    assert "test perplexity" in outcome.out


def test_code_that_the_command_line_names_is_imported(finished_ptb, command, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath(__file__).with_name('mine').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = command(tool("report"), finished_ptb.folder, "--code", "mine")
    assert outcome.status == 0 and (tmp_path / "mine").exists()
    assert_user_error(command(tool("report"), finished_ptb.folder, "--code", "no_such_module"), "--code")
