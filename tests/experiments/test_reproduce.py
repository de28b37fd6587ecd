"""Check that the commands behind the results tables can be parsed, and include each documented one."""

import re
import shlex
from pathlib import Path

import pytest
from commands import assert_user_error, execute

from dynskip_jax.experiments import reproduce
from dynskip_jax.experiments.command_line import read_flags, read_training, resolve_training
from dynskip_jax.experiments.registry import find_experiment
from dynskip_jax.experiments.reproduce import REDUCED, TABLES, Flags, arguments_of, find_table

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PLACEHOLDERS = {"DIR", "RUN", "MODEL", "NAME", "TEXT", "vectors.txt"}


def flags(**given):
    return Flags(**{"embeddings": "vectors.txt", "data": "DIR", "out": "there"} | given)


@pytest.mark.parametrize("size", ["full", "reduced"])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_each_command_can_be_read(table, size):
    begun = set()
    for run, (name, *line) in arguments_of(table, flags(size=size)):
        experiment = find_experiment(name)
        if run.trains:
            given, _ = read_training(experiment, line)
            settings = resolve_training(experiment, given).settings
            assert settings.run.run_dir not in begun
            if settings.agent.control_of is None:
                experiment(settings)  # raises an error if settings contradict each other
            else:
                assert settings.agent.control_of in begun
            begun.add(settings.run.run_dir)
        else:
            read = read_flags("", "", experiment.commands[line[0]].flags, line[1:])
            assert getattr(read, "run_dir", None) in {None, *begun}  # the folder of an earlier run


def sections():
    """Yield page, heading and text of each section of the results pages."""
    for path in sorted(RESULTS.glob("*.md")):
        parts = re.split(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True):
            if path.stem != "log":
                yield path.stem, heading, text


def documented(text):
    """Return the training commands in the blocks of a section, as experiment and flags."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    found = re.findall(r"^python -m experiments\.(\w+) (--.*)$", blocks, re.MULTILINE)
    return [(name, shlex.split(line)) for name, line in found]


def test_each_table_with_a_command_has_a_name():
    named = {(table.page, table.section) for table in TABLES}
    assert len({table.name for table in TABLES}) == len(TABLES)
    shown = {
        (page, heading)
        for page, heading, text in sections()
        if re.search(r"^\| --- ", text, re.MULTILINE) and "python -m experiments." in text
    }
    assert shown <= named, shown - named
    assert named <= {(page, heading) for page, heading, _ in sections()}


def test_each_documented_command_is_one_of_its_table():
    commands = 0
    for page, heading, text in sections():
        tables = [table for table in TABLES if (table.page, table.section) == (page, heading)]
        for name, line in documented(text):
            wanted = settings_of(line)
            runs = [run for table in tables for run in table.runs if run.experiment == name and run.trains]
            assert any(wanted.items() <= settings_of(run.flags).items() for run in runs), (heading, wanted)
            commands += 1
    assert commands > 20


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


def test_the_list_and_the_commands_are_printed(here):
    listed = execute(lambda: reproduce.main(["--list"]))
    assert listed.status == 0 and all(table.name in listed.out for table in TABLES)
    assert execute(lambda: reproduce.main([])).out == listed.out
    outcome = execute(lambda: reproduce.main(["ptb-cache", "--dry-run", "--data", "a b", "--out", "there"]))
    train, cache, report = map(shlex.split, outcome.out.splitlines())
    assert train[-4:] == ["--data", "a b", "--run-dir", "there/compared"]
    assert cache[-3:] == ["evaluate", "--run-dir", "there/compared"] and report[-1] == "there/compared"
    assert not any(here.iterdir())


def test_a_corpus_may_be_in_another_folder_and_tables_do_not_share_run_folders():
    for_all = Flags(("numbers-11", "numbers-21"), out="there", data="DIR")
    folders = [line[-1] for name in for_all.names for _, line in arguments_of(find_table(name), for_all)]
    assert len(set(folders)) == len(folders) > 4
    for _, line in arguments_of(find_table("wikitext2"), for_all):
        assert line[line.index("--data") + 1] == "DIR"


def test_what_it_has_not_is_said_in_one_line():
    assert_user_error(execute(lambda: reproduce.main(["tabel-3"])), "choose numbers-11")
    assert_user_error(execute(lambda: reproduce.main(["imdb-strong", "--dry-run"])), "--embeddings FILE")


@pytest.mark.slow
def test_a_table_is_made_at_reduced_size(tmp_path, capfd):
    outcome = execute(lambda: reproduce.main(["agreement", "--size", "reduced", "--out", str(tmp_path)]))
    assert outcome.status == 0, outcome.err
    (table,) = [table for table in TABLES if table.name == "agreement"]
    assert {path.name for path in tmp_path.iterdir()} == {run.name for run in table.runs}
    assert "random:19" in outcome.out and "--train-examples" in REDUCED["agreement"]


@pytest.mark.slow
def test_a_command_that_fails_is_named(tmp_path, capfd):
    bad = ["entities", "--size", "reduced", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert_user_error(execute(lambda: reproduce.main(bad)), "compared failed with exit status 2")
