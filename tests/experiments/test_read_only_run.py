"""Check that commands read a finished run from a read-only folder, and refuse to train it in one
line.
"""

import builtins
import errno
import io
import os
import shutil

import pytest
import quick
from commands import PTB, assert_user_error, execute, snapshot, succeed, unfinish


@pytest.fixture
def read_only(monkeypatch):
    """Return a function that makes all writes below a folder fail, as on a read-only file
    system.
    """

    def protect(folder):
        def guarded(function, writes):
            def call(path, *arguments, **options):
                below = isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(
                    str(folder)
                )
                if below and writes(path, *arguments):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                return function(path, *arguments, **options)

            return call

        opened = guarded(io.open, lambda path, mode="r", *_: set(mode) & set("wax+"))
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)
        flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        monkeypatch.setattr(os, "open", guarded(os.open, lambda path, how, *_: how & flags))
        monkeypatch.setattr(
            os, "mkdir", guarded(os.mkdir, lambda path, *_: not os.path.exists(path))
        )

    return protect


def test_explain_prints_all_of_its_answer(compared_ptb, tmp_path, read_only):
    """The command once printed half of its answer, and then asked for disk space."""
    folder = shutil.copytree(compared_ptb.folder, tmp_path / "run")
    arguments = ("explain", "--run-dir", folder, "--text", "a b b c h")
    expected = succeed(PTB, *arguments)
    shutil.rmtree(folder / "plots")
    read_only(folder)
    outcome = execute(PTB, *arguments)
    assert (outcome.status, outcome.err) == (0, "")
    warning = f"warning: nothing can be written into {folder} (Read-only file system)"
    kept = [line for line in expected.out.splitlines() if not line.startswith("picture: ")]
    assert len(kept) < len(expected.out.splitlines()) and warning in outcome.out.splitlines()
    assert [line for line in outcome.out.splitlines() if line != warning] == kept


@pytest.mark.parametrize("is_finished", [True, False])
def test_training_on_is_refused_in_one_line(is_finished, finished_quick, tmp_path, read_only):
    folder = shutil.copytree(finished_quick.folder, tmp_path / "run")
    if not is_finished:
        unfinish(folder)
    before = snapshot(folder)
    read_only(folder)
    outcome = execute(quick.Quick, *finished_quick.arguments, "--epochs", 3, "--run-dir", folder)
    assert_user_error(outcome, str(folder), "--run-dir")
    assert "make room" not in outcome.err and snapshot(folder) == before
