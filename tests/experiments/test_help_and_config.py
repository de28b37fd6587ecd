"""Check that `--help` and `--print-config` show all flags, presets and commands, without importing JAX."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMMANDS, assert_user_error, snapshot

import dynskip_jax.experiments as experiments
from dynskip_jax.experiments.command_line import config_table, read_training
from dynskip_jax.experiments.registry import EXPERIMENTS
from dynskip_jax.experiments.settings import flag, get, resolve
from dynskip_jax.settings import field_types

ROOT = Path(experiments.__file__).parents[2]


@pytest.fixture(params=COMMANDS)
def name(request):
    return request.param


def flags_of(command):
    """Return the flags of each group of settings."""
    groups = field_types(command.settings_type).items()
    return {group: [flag(field.name) for field in dataclasses.fields(kind)] for group, kind in groups}


def in_groups(help):
    """Return the flags that a help text lists below the heading of each group."""
    found, group = {}, None
    for line in help.splitlines():
        if heading := re.fullmatch(r"(\w+):", line):
            group = found.setdefault(heading[1], [])
        elif (given := re.match(r"  (--[a-z-]+)", line)) and group is not None:
            group.append(given[1])
    return found


def table(text):
    """Return the value and the source of each setting in the output of `--print-config`."""
    rows = [re.split(r"  +", line, maxsplit=2) for line in text.splitlines()]
    return {name: (value, source) for name, value, source in rows}


# --- --help ---


def test_help_has_every_flag_in_its_group(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    outcome = command(COMMANDS[name], "--help")
    assert outcome.status == 0 and outcome.err == ""
    found = in_groups(outcome.out)
    options = found.pop("options")
    assert options == ["--print-config", "--debug", "--log-file"]
    expected = flags_of(COMMANDS[name])
    assert list(found) == list(expected)
    for group, flags in expected.items():
        assert found[group] == flags
    everything = [flag for flags in expected.values() for flag in flags]
    assert len(everything) == len(set(everything)) > 50  # names are unique across groups
    assert max(map(len, outcome.out.splitlines())) <= 110


def test_help_has_commands_and_what_each_flag_means(name, command):
    text = " ".join(command(COMMANDS[name], "--help").out.split())
    for sub, about in COMMANDS[name].commands.items():
        assert f"{sub}: {about.about}" in text
    for kind in field_types(COMMANDS[name].settings_type).values():
        for field in dataclasses.fields(kind):
            assert field.metadata["help"], field.name
            assert " ".join(field.metadata["help"].split()) in text, field.name


def test_presets_in_help_are_command_lines_that_set_the_same(name, command):
    this = COMMANDS[name]
    _, _, section = command(this, "--help").out.partition("presets, and what they set:\n")
    listed = dict(re.findall(r"^  (\w+): (.*(?:\n {6}.*)*)", section, re.MULTILINE))
    assert list(listed) == list(this.presets)
    for preset, line in listed.items():
        given, _ = read_training(this, [] if line == "the defaults" else line.split())
        assert given.keys() == this.presets[preset].keys()
        for key, value in this.presets[preset].items():
            assert given[key] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_subcommands_have_help_of_their_own(name, command):
    for sub, about in COMMANDS[name].commands.items():
        outcome = command(COMMANDS[name], sub, "--help")
        assert outcome.status == 0
        text = " ".join(outcome.out.split())
        assert about.about in text
        for field in dataclasses.fields(about.flags):
            assert flag(field.name) in text and " ".join(field.metadata["help"].split()) in text


def alone(*arguments):
    """Run a module as a program in a process of its own, and return the finished process.

    The last line of its standard error is whether it has imported JAX.
    """
    code = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('jax' in sys.modules, file=sys.stderr))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__')"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--print-config",), ("explain", "--help"), ("--epochs", "0"), ("nope",)]
)
def test_a_command_line_is_read_without_jax(arguments):
    done = alone("experiments.ptb", *arguments)
    assert done.stderr.splitlines()[-1] == "False"
    assert done.returncode == (0 if {"--help", "--print-config"} & set(arguments) else 2)


def test_the_list_of_experiments_imports_no_jax():
    done = alone("experiments")
    assert (done.returncode, done.stderr) == (0, "False\n")
    for command in COMMANDS.values():
        line = next(line for line in done.stdout.splitlines() if f"experiments.{command.name} " in line)
        assert line.endswith(command.about().strip().splitlines()[0])
    assert len(done.stdout.splitlines()) == len(EXPERIMENTS) + 5  # the four tools, and the line about --help


# --- --print-config ---


def test_print_config_says_where_each_setting_comes_from(name, command, here):
    this = COMMANDS[name]
    outcome = command(this, "--preset", "released", "--features", 8, "--mix", "0.25,0.5", "--print-config")
    assert outcome.status == 0 and outcome.err == ""
    found = table(outcome.out)
    assert list(found) == [
        f"{g}.{f[2:].replace('-', '_')}" for g, flags in flags_of(this).items() for f in flags
    ]
    assert found["run.preset"] == ("released", "flag")
    assert found["model.features"] == ("8", "flag")
    assert found["agent.mix"] == ("0.25,0.5", "flag")
    assert found["agent.agent_input"] == ("mean", "preset released")
    assert found["agent.rollouts"] == ("1", "default")
    assert found["run.run_dir"] == ("none", "default")
    assert {source for _, source in found.values()} == {"default", "flag", "preset released"}
    from_preset = {setting.partition(".")[2] for setting, (_, source) in found.items() if "preset" in source}
    assert from_preset == set(this.presets["released"]) - {"features", "mix"}
    assert snapshot(here) == {}


def test_print_config_of_the_default_preset(name, command):
    found = table(command(COMMANDS[name], "--print-config").out)
    preset = {"ptb": "small", "number_prediction": "relaxed"}[name]
    assert found["run.model"] == (COMMANDS[name].default_model, "default")
    assert found["run.preset"] == (preset, "default")
    assert found["training.patience"][1] == f"preset {preset}"
    if name == "number_prediction":
        found = table(command(COMMANDS[name], "--length", "21", "--print-config").out)
        assert found["run.preset"] == ("two_hops", "default")
        assert found["data.length"] == ("21", "flag")


def test_help_has_in_brackets_what_a_plain_run_takes(name, command):
    text = command(COMMANDS[name], "--help").out
    found = table(command(COMMANDS[name], "--print-config").out)
    for setting in ("model", "epochs", "mix", "baseline", "features"):
        described = re.search(rf"\n  --{setting} .*?\n  --", text, re.DOTALL)[0]
        (value,) = (value for key, (value, _) in found.items() if key.partition(".")[2] == setting)
        assert f"[{value}]" in " ".join(described.split())


def test_a_preset_may_name_its_model(command):
    far = ("--preset", "far", "--print-config")
    found = table(command(COMMANDS["ptb"], *far).out)
    assert found["run.model"] == ("dynamic:200", "preset far")
    assert table(command(COMMANDS["ptb"], *far, "--model", "lstm").out)["run.model"] == ("lstm", "flag")
    compared = table(command(COMMANDS["ptb"], *far, "--compare", "lstm,dynamic:50").out)
    assert compared["run.compare"] == ("lstm,dynamic:50", "flag")
    assert compared["run.model"] == ("none", "default")


def test_what_print_config_shows_is_what_would_be_trained(name):
    this = COMMANDS[name]
    for preset in this.presets:
        given, only = read_training(this, ["--preset", preset, "--print-config"])
        assert only
        resolved = resolve(this.settings_type, this.presets, "nope", given)
        found = table(config_table(this, resolved))
        for group, kind in field_types(this.settings_type).items():
            for field in dataclasses.fields(kind):
                value, shown = get(resolved.settings, field.name), found[f"{group}.{field.name}"][0]
                value = this.default_model if field.name == "model" and value is None else value
                if isinstance(value, float):
                    assert float(shown) == pytest.approx(value, rel=1e-5)
                elif isinstance(value, tuple):
                    assert [float(part) for part in shown.split(",")] == pytest.approx(value, rel=1e-5)
                else:
                    assert shown == ("none" if value is None else str(value))


def test_senseless_settings_are_not_printed(name, command):
    assert_user_error(command(COMMANDS[name], "--features", 0, "--print-config"), "--features", "at least 1")


# --- Flags are the settings ---


def test_every_setting_is_a_flag_and_its_shown_value_can_be_given_again(name):
    """The output of `--print-config`, given as flags, results in the same settings."""
    this = COMMANDS[name]
    for preset in this.presets:
        resolved = resolve(this.settings_type, this.presets, preset, {})
        line = []
        for setting, (value, _) in table(config_table(this, resolved)).items():
            key = setting.partition(".")[2]
            if value in ("True", "False"):
                line.append(flag(key) if value == "True" else f"--no-{key.replace('_', '-')}")
            else:
                line += [flag(key), value]
        given, _ = read_training(this, line)
        again = resolve(this.settings_type, this.presets, preset, given)
        for kind in field_types(this.settings_type).values():
            for field in dataclasses.fields(kind):
                one, other = (get(r.settings, field.name) for r in (resolved, again))
                one = this.default_model if field.name == "model" and one is None else one
                assert other == (pytest.approx(one, rel=1e-5) if isinstance(one, float) else one), field.name
