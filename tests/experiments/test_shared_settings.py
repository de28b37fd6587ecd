"""Check the settings of all experiments: one meaning for each name, valid needs, and older run folders."""

import dataclasses
import json
import os
import re
import typing
from pathlib import Path

import pytest
import quick
from commands import assert_user_error, execute

from dynskip_jax import functional as F
from dynskip_jax.experiments.model_spec import each
from dynskip_jax.experiments.registry import EXPERIMENTS, find_experiment
from dynskip_jax.experiments.settings import Run, fields_of
from dynskip_jax.experiments.stored_settings import RENAMED, from_config, upgraded
from dynskip_jax.settings import Other, field_types, without_none, words_of
from dynskip_jax.training import model_names

KINDS = {name: find_experiment(name).settings_type for name in EXPERIMENTS}


def base_type(hint):
    """Return a setting's type without None and allowed words, which may differ between experiments."""
    hint = without_none(hint)
    return str if typing.get_origin(hint) is typing.Literal else hint


def test_a_name_means_the_same_in_every_experiment():
    found = {}
    for experiment, kind in KINDS.items():
        for group, field, hint in fields_of(kind):
            meaning = group, base_type(hint), field.metadata["help"]
            found.setdefault(field.name, {}).setdefault(meaning, []).append(experiment)
    assert {name: meanings for name, meanings in found.items() if len(meanings) > 1} == {}


def test_needs_are_of_settings_that_exist_and_of_values_that_they_may_have():
    groups = {
        name: {field.name: (field, hint) for _, field, hint in fields_of(kind)}
        for name, kind in KINDS.items()
    }
    for where, known in groups.items():
        for name, (field, _) in known.items():
            for other, allowed in ((o, a) for needs in field.metadata["needs"] for o, a in needs.items()):
                assert other in known and other != name, (where, name)
                values, words = each(allowed), words_of(known[other][1])
                if other == "model":
                    values, words = [value.partition(":")[0] for value in values], model_names.MODEL_NAMES
                assert isinstance(allowed, Other) or not words or set(values) <= {*words}, (where, name)


def test_names_of_models_have_what_is_said_of_them():
    for name, make in F.TIME_SKIPS.items():
        kind = getattr(make, "func", make)
        skip = kind(max_skip=3) if kind.takes_max_skip else kind()
        fields, is_one_of = field_types(kind), lambda names, name=name: model_names.is_one_of(name, names)
        assert is_one_of(model_names.WITH_AGENT) == skip.has_agent == ("among" in fields)
        assert is_one_of(model_names.WITH_K) == skip.takes_max_skip == ("first_step" in fields)
        assert is_one_of(model_names.CHOOSING) == isinstance(skip, F.Dynamic)
        assert is_one_of(model_names.REWARDED) == (skip.is_stochastic and name != "random")
        assert is_one_of(model_names.READING_LESS) == (not skip.writes_all and not skip.is_stochastic)
        assert is_one_of(model_names.COPYING) == skip.has_distribution
    assert model_names.is_one_of("my_module:MySkip(16)", ())


def test_help_and_docs_name_every_model():
    help_text = field_of(Run, "model").metadata["help"]
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text(encoding="utf-8")
    for name in model_names.MODEL_NAMES:
        assert re.search(rf"\b{name}\b(?!_)", help_text) and re.search(rf"`{name}[:`]", page), name


def field_of(kind, name):
    return next(field for field in dataclasses.fields(kind) if field.name == name)


# --- What older versions wrote ---


def test_a_renamed_setting_is_one_that_no_experiment_of_now_would_take_for_another():
    names = {name: {field.name for _, field, _ in fields_of(kind)} for name, kind in KINDS.items()}
    for old, new in RENAMED.items():
        assert new is None or any(new in of for of in names.values())
        assert not any({old, new} <= of for of in names.values())


def test_settings_of_an_older_tagger_are_read():
    old = {
        "data": {"data_seed": 3},
        "model": {"dropout_hidden": "ends", "init_scale": 0.1, "min_count": 2, "column_features": 7},
        "training": {"decay": 0.05},
    }
    settings = from_config(KINDS["pos"], old)
    assert (settings.data.split_seed, settings.data.min_count) == (3, 2)
    assert (settings.model.dropout_between, settings.model.init_gain) == ("ends", 0.1)
    assert settings.training.inverse_decay == 0.05
    again = upgraded(KINDS["pos"], json.loads(json.dumps(settings.to_config())))
    assert from_config(KINDS["pos"], again) == settings


def test_settings_of_an_older_classifier_are_read():
    settings = from_config(KINDS["imdb"], {"data": {"dev_seed": 3}, "model": {"zoneout": 0.1}})
    assert settings.data.split_seed == 3 and settings.model.zoneout == (0.1,)
    assert from_config(KINDS["ptb"], {"training": {"decay": 1.35, "decay_after": 7}}).training.decay == 1.35


# --- --config FILE ---


def test_a_runs_configuration_gives_its_settings(finished_quick):
    config = finished_quick.folder / "config.json"
    shown = execute(quick.Quick, "--config", config, "--epochs", 5, "--print-config").out
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.splitlines()}
    assert rows["training.epochs"] == ["5", "flag"]
    assert rows["run.seeds"] == ["2", f"config {config}"] and rows["run.model"][0] == "lstm"
    assert rows["devices.devices"] == ["none", "default"]
    again = execute(quick.Quick, "--config", config, "--run-dir", finished_quick.folder)
    assert again.status == 0 and "finished already" in again.out, again.err


@pytest.mark.parametrize(
    ("text", "more", "parts"),
    [
        (None, (), ("expected the config.json of a run of quick", "No such file")),
        ("[1]", (), ("expected the config.json of a run of quick", "another file")),
        ('{"experiment": "ptb", "format": 3, "model": "lstm", "settings": {}}', (), ("found one of ptb",)),
        (
            '{"experiment": "quick", "format": 3, "model": "lstm", "settings": {"model": {"size": 3}}}',
            (),
            ("size",),
        ),
        ("{}", ("--preset", "small"), ("--preset and --config", "leave one out")),
    ],
    ids=["no file", "no configuration", "another experiment", "another version", "preset"],
)
def test_a_configuration_that_cannot_be_used_is_one_line(text, more, parts, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    arguments = ("--config", tmp_path / "config.json", *more, "--print-config")
    assert_user_error(execute(quick.Quick, *arguments), *parts)


def test_a_configuration_that_has_no_end_is_not_read(tmp_path):
    """A pipe once hung the command, and /dev/zero filled the memory."""
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device")):
        assert_user_error(execute(quick.Quick, "--config", path, "--print-config"), f"is {kind}, not a file")
