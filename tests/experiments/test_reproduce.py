"""Check that the commands behind the results tables can be read, and that the pages name them."""

import re
import shlex
from pathlib import Path

import pytest
from commands import assert_user_error, execute, succeed, tool
from flags import flags_of

from dynskip_jax.commands.reproduce import all_tables, commands_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLES, REPRODUCE = all_tables(), tool("reproduce")


@pytest.mark.parametrize("name", TABLES)
def test_each_command_can_be_read(name):
    begun = {None}
    assert "vectors" not in TABLES[name].runs  # that is the file of word vectors
    for line in commands_of(TABLES[name]):
        found = flags_of(line[0], line[1:])
        if line[1].startswith("--"):
            run = found.settings
            assert run.agent.control_of in begun and run.run.run_dir not in begun
            assert run.run.run_dir.parts[:2] == ("runs", "reproduce")
            begun.add(run.run.run_dir)
        else:  # a command over an earlier run
            assert getattr(found.get("run"), "run_dir", None) in begun


@pytest.mark.parametrize("name", TABLES)
def test_its_page_has_the_heading_and_names_it(name):
    text = (RESULTS / f"{TABLES[name].page}.md").read_text(encoding="utf-8")
    assert re.search(rf"^#+ {re.escape(TABLES[name].section)}$", text, re.MULTILINE)
    assert re.search(rf"`(reproduce\s)?{name}`", text)


def test_the_list_and_the_commands_are_printed(here):
    listed = succeed(REPRODUCE)
    assert all(name in listed.out for name in TABLES)
    train, cache, report = map(shlex.split, succeed(REPRODUCE, "ptb-cache").out.splitlines())
    folder = "runs/reproduce/ptb-cache/compared"
    assert train[-2:] == ["--run-dir", folder]
    assert cache[-3:] == ["evaluate", "--run-dir", folder] and report[-1] == folder
    assert succeed(REPRODUCE, "imdb-strong").out.startswith("test -e vectors.txt || ")
    assert_user_error(execute(REPRODUCE, "tabel-3"), "there is no 'tabel-3': choose")
    assert not any(here.iterdir())
