"""Check that the commands behind the results tables can be read, and include those of the pages."""

import re
import shlex
from pathlib import Path

import pytest
from commands import assert_user_error, execute, succeed, tool
from flags import flags_of

from dynskip_jax.commands.reproduce import all_tables, commands_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PLACEHOLDERS = {"DIR", "RUN", "MODEL", "NAME", "TEXT", "vectors.txt"}
TABLES, REPRODUCE = all_tables(), tool("reproduce")


@pytest.mark.parametrize("name", TABLES)
def test_each_command_can_be_read(name):
    begun = {None}
    for _, line in commands_of(TABLES[name], Path("DIR"), Path("vectors.txt"), Path("there")):
        found = flags_of(line[0], line[1:])
        if line[1].startswith("--"):
            run = found.settings
            assert run.agent.control_of in begun and run.run.run_dir not in begun
            begun.add(run.run.run_dir)
        else:  # a command over an earlier run
            assert getattr(found.get("run"), "run_dir", None) in begun


def sections():
    """Yield page, heading and text of each section of the results pages."""
    for path in sorted(RESULTS.glob("*.md")):
        parts = re.split(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True):
            if path.stem != "log":
                yield path.stem, heading, text


def settings_of(line):
    """Return the flags of a command line, without those whose values are placeholders."""
    found, name = {}, None
    for part in line:
        if part.startswith("--"):
            found[name := part] = None
        else:
            found[name] = part
    left_out = {"--data", "--seeds"} | {flag for flag, value in found.items() if value in PLACEHOLDERS}
    return {flag: value for flag, value in found.items() if flag not in left_out}


def test_the_results_pages_show_commands_of_these_tables():
    named = {(table.page, table.section) for table in TABLES.values()}
    assert named <= {(page, heading) for page, heading, _ in sections()}
    commands = 0
    for page, heading, text in sections():
        if re.search(r"^\| --- ", text, re.MULTILINE) and "python -m experiments." in text:
            assert (page, heading) in named
        blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        tables = [table for table in TABLES.values() if (table.page, table.section) == (page, heading)]
        runs = [shlex.split(run) for table in tables for run in table.runs.values()]
        for name, line in re.findall(r"^python -m experiments\.(\w+) (--.*)$", blocks, re.MULTILINE):
            wanted = settings_of(shlex.split(line)).items()
            own = [settings_of(rest) for of, *rest in runs if of == name and rest[0].startswith("--")]
            assert any(wanted <= settings.items() for settings in own), (heading, line)
            commands += 1
    assert commands > 20


def test_the_list_and_the_commands_are_printed(here):
    listed = succeed(REPRODUCE)
    assert all(name in listed.out for name in TABLES)
    outcome = execute(REPRODUCE, "ptb-cache", "--data", "a b", "--out", "there")
    train, cache, report = map(shlex.split, outcome.out.splitlines())
    folder = "there/ptb-cache/compared"
    assert train[-4:] == ["--data", "a b", "--run-dir", folder]
    assert cache[-3:] == ["evaluate", "--run-dir", folder] and report[-1] == folder
    assert_user_error(execute(REPRODUCE, "tabel-3"), "there is no 'tabel-3': choose")
    assert_user_error(execute(REPRODUCE, "imdb-strong"), "--embeddings FILE")
    assert not any(here.iterdir())
