"""Check that the commands behind the results tables can be read, and that the pages name them."""

import re
import shlex
from pathlib import Path

import pytest
from commands import assert_user_error, execute, succeed, tool
from flags import flags_of
from marks import and_slow

from dynskip_jax.commands.reproduce import all_tables, commands_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLES, REPRODUCE = all_tables(), tool("reproduce")


def covering(lines):
    """Return the lines in which an experiment has a flag or a command that no earlier one has."""
    seen, found = set(), []
    for name, *words in lines:
        pairs = {(name, word) for word in words if word.startswith("--")} | {(name, words[0])}
        if not pairs <= seen:
            seen |= pairs
            found.append([name, *words])
    return found


LINES = [line for table in TABLES.values() for line in commands_of(table)]


@pytest.mark.parametrize("line", and_slow(LINES, covering(LINES).__contains__), ids=" ".join)
def test_a_command_can_be_read(line):
    found = flags_of(line[0], line[1:])
    if line[1].startswith("--") and line[0] != "benchmarks.choice":
        assert found.settings.run.run_dir.parts[:2] == ("runs", "reproduce")


@pytest.mark.parametrize("name", TABLES)
def test_each_command_reads_a_folder_that_an_earlier_one_wrote(name):
    assert "vectors" not in TABLES[name].runs  # that is the file of word vectors
    begun = set()
    for line in commands_of(TABLES[name]):
        folder = line[line.index("--run-dir") + 1] if "--run-dir" in line else None
        is_training = line[0] != "benchmarks.choice" and line[1].startswith("--")
        if is_training:
            assert folder not in begun
            begun.add(folder)
        elif folder is not None:
            assert folder in begun
        for flag in {"--control-of", "--start-from"} & {*line}:
            assert line[line.index(flag) + 1] in begun


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
