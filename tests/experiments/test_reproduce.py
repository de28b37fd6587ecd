"""Check that the commands behind the results tables can be read, and include those of the pages."""

import functools
import re
import shlex
from pathlib import Path

import pytest
from commands import assert_user_error, execute, tool

from dynskip_jax import cli
from dynskip_jax.cli import read_training
from dynskip_jax.commands.reproduce import all_tables, commands_of
from dynskip_jax.config import call
from dynskip_jax.experiment import find_experiment

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PLACEHOLDERS = {"DIR", "RUN", "MODEL", "NAME", "TEXT", "vectors.txt"}
TABLES, REPRODUCE = all_tables(), tool("reproduce")


@pytest.fixture
def flags(monkeypatch):
    """Return a list to which the flags of each command are added, which does not run."""
    found = []

    def read(function, prog, arguments, **given):
        call(functools.wraps(function)(lambda **values: found.append(values)), prog, arguments, **given)

    monkeypatch.setattr(cli, "call", read)
    return found


@pytest.mark.parametrize("size", ["full", "reduced"])
@pytest.mark.parametrize("name", TABLES)
def test_each_command_can_be_read(name, size, flags):
    begun = set()
    for _, line in commands_of(TABLES[name], size, Path("DIR"), Path("vectors.txt"), Path("there")):
        experiment = find_experiment(line[0])
        if line[1].startswith("--"):
            settings = read_training(experiment, line[1:])[0].settings
            assert str(settings.run.run_dir) not in begun
            assert settings.agent.control_of is None or str(settings.agent.control_of) in begun
            begun.add(str(settings.run.run_dir))
        else:
            cli.main(line)
            assert str(flags[-1].get("run_dir")) in {"None", *begun}  # the folder of an earlier run


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
        runs = [
            shlex.split(run)
            for table in TABLES.values()
            if (table.page, table.section) == (page, heading)
            for run in table.runs.values()
        ]
        for name, line in re.findall(r"^python -m experiments\.(\w+) (--.*)$", blocks, re.MULTILINE):
            wanted = settings_of(shlex.split(line)).items()
            own = [settings_of(rest) for of, *rest in runs if of == name and rest[0].startswith("--")]
            assert any(wanted <= settings.items() for settings in own), (heading, line)
            commands += 1
    assert commands > 20


def test_the_list_and_the_commands_are_printed(here):
    listed = execute(REPRODUCE, "--list")
    assert listed.status == 0 and all(name in listed.out for name in TABLES)
    assert execute(REPRODUCE).out == listed.out
    outcome = execute(REPRODUCE, "ptb-cache", "--dry-run", "--data", "a b", "--out", "there")
    train, cache, report = map(shlex.split, outcome.out.splitlines())
    assert train[-4:] == ["--data", "a b", "--run-dir", "there/compared"]
    assert cache[-3:] == ["evaluate", "--run-dir", "there/compared"] and report[-1] == "there/compared"
    both = execute(REPRODUCE, "numbers-11", "numbers-21", "--dry-run", "--out", "there").out
    folders = re.findall(r"--run-dir (\S+)", both)
    assert len(set(folders)) == len(folders) > 4  # tables do not share run folders
    assert not any(here.iterdir())


def test_errors_are_one_line():
    assert_user_error(execute(REPRODUCE, "tabel-3"), "there is no 'tabel-3': choose")
    assert_user_error(execute(REPRODUCE, "imdb-strong", "--dry-run"), "--embeddings FILE")


@pytest.mark.slow
def test_a_table_is_made_at_reduced_size(tmp_path, capfd):
    outcome = execute(REPRODUCE, "agreement", "--size", "reduced", "--out", tmp_path / "out")
    assert outcome.status == 0 and "random:19" in outcome.out, outcome.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*TABLES["agreement"].runs}
    bad = "entities", "--size", "reduced", "--data", tmp_path, "--out", tmp_path / "bad"
    assert_user_error(execute(REPRODUCE, *bad), "compared failed with exit status 2")
