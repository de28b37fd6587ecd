"""Check settings: types, bounds, presets, files, and that no experiment needs JAX to describe itself."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from commands import load
from quick import QuickSettings

import dynskip_jax
from dynskip_jax.config import Bounds, Count, Rate, Seed, problem, read_value, short
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import NAMES, find_experiment
from dynskip_jax.learners import make_fit_settings, make_learner
from dynskip_jax.settings import (
    fields_of,
    fill,
    from_config,
    get,
    read_config_file,
    replace,
    resolve,
    to_config,
)
from dynskip_jax.spec import make_spec
from dynskip_jax.training.files import FORMAT

ROOT = Path(dynskip_jax.__file__).parent
PRESETS = [(name, preset) for name in NAMES for preset in find_experiment(name).presets]
SHRUNK = dict(features=4, agent_features=3, num_layers=2, embedding_features=4, length=5, train_examples=8)


def settings_of(name, preset=None, **given):
    experiment = find_experiment(name)
    given = {key: value for key, value in given.items() if key in fields_of(experiment.settings)}
    preset = preset or next(iter(experiment.presets))
    return resolve(experiment.settings, experiment.presets, preset, given).settings


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", Count, 3),
        ("none", Count | None, None),
        ("0.1,0.2", Rate | tuple[Rate, ...], (0.1, 0.2)),
        ("0.1", Rate | tuple[Rate, ...], 0.1),
        ("0.1", tuple[Rate, ...], (0.1,)),
        ("plateau", Count | Literal["plateau"], "plateau"),
        ("~/a b", Path | None, Path.home() / "a b"),
        ("~/a b", str, "~/a b"),
    ],
)
def test_texts_become_values(text, hint, value):
    assert read_value(text, hint) == value
    assert problem(value, hint) is None


@pytest.mark.parametrize(
    ("value", "hint", "part"),
    [
        ("x", Count, "takes a whole number, got 'x'"),
        (True, Count, "a whole number"),
        (0, Count, "at least 1"),
        (10**400, Seed, "at most"),
        (float("nan"), Rate, "at least 0 and below 1"),
        ((0.5, 1.0), tuple[Rate, ...], "below 1, got 1.0"),
        ((0.5, 0.5), Rate | tuple[Rate, ...], "twice"),
        (0.5, tuple[Rate, ...], "separated by commas"),
        ("c", Literal["a", "b"] | None, "a or b"),
        (None, Count, "got 'None'"),
    ],
)
def test_what_does_not_fit_is_described(value, hint, part):
    assert part in problem(value, hint)
    assert len(problem(value, hint)) < 150 and len(short("x" * 10**6)) < 100


def test_bounds_hold_at_their_ends():
    assert Bounds(at_least=0, below=1).hold(0) and not Bounds(at_least=0, below=1).hold(1)
    assert Bounds(at_most=1).hold(1) and not Bounds(above=0).hold(0)


# --- Every experiment ---


def test_there_are_few_settings_each_with_a_text():
    found = set()
    for name in NAMES:
        kind = find_experiment(name).settings
        found |= fields_of(kind).keys()
        for field, (_, hint, default) in fields_of(kind).items():
            assert problem(default, hint) is None, field
    assert len(found) <= 95
    used = {key for name in NAMES for values in find_experiment(name).presets.values() for key in values}
    assert used <= found


def make_data(name, settings):
    """Return the vocabulary of an experiment, and no data."""
    from dynskip_jax.data import Vocabulary
    from dynskip_jax.data.vocabularies import ClassVocabulary, tagger_vocabulary

    words = ("<unk>", "<eos>", "a", "b")
    if name in ("conll2003", "pos"):
        tags = ("O", "B-X", "I-X", "E-X", "S-X")
        return tagger_vocabulary([("a", "b")], tags, columns=[((), ())], scheme=None)
    return ClassVocabulary(words, ("x", "y")) if name == "classify" else Vocabulary(words)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_each_preset_describes_a_model_that_can_be_made(name, preset):
    given = SHRUNK if preset != "two_hops" else {**SHRUNK, "length": 21}
    given = {**given, "num_layers": 3 if preset == "awd" else 2, "mix": 0.5}
    if (name, preset) == ("sick", "paper"):
        given["train_embeddings"] = True
    if "depth_skip" in find_experiment(name).presets[preset]:
        given["num_layers"] = 3
    settings = settings_of(name, preset, **given)
    experiment = find_experiment(name)
    spec = make_spec("dynamic:3", settings)
    learner = make_learner(experiment, settings, spec, None, make_data(name, settings))
    assert learner.abstract_params()
    fit = make_fit_settings(settings, spec, learner)
    rates = fit.learning_rate(0, np.zeros((0, 1)))
    assert fit.epochs == settings.training.epochs and rates.shape == (1,) and rates[0] > 0
    config = json.loads(json.dumps({"format": FORMAT, "settings": to_config(settings)}))
    assert fill(experiment.settings, from_config(experiment.settings, config)) == replace(
        settings, model=None
    )


def test_schedules_follow_the_settings():
    def rates(name, model="dynamic:3", **given):
        settings = settings_of(name, **given)
        spec = make_spec(model, settings)
        experiment = find_experiment(name)
        learner = make_learner(experiment, settings, spec, None, make_data(name, settings))
        schedule = make_fit_settings(settings, spec, learner).learning_rate
        history = np.array([[5.0], [4.0], [3.9], [3.8], [3.7]])
        return [float(schedule(epoch, history[:epoch])[0]) for epoch in range(5)]

    np.testing.assert_allclose(
        rates("ptb", learning_rate=1.0, decay=2.0, decay_after=2), [1, 1, 0.5, 0.25, 0.125]
    )
    plateau = rates("ptb", learning_rate=1.0, decay=2.0, decay_after="plateau")
    assert plateau[:3] == [1, 1, 1] and plateau[4] < 1
    np.testing.assert_allclose(
        rates("pos", learning_rate=1.0, inverse_decay=1.0), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    )
    relaxed = dict(learning_rate=1.0, sampled_decay=0.5, relaxed_epochs=2, length=5)
    np.testing.assert_allclose(rates("agreement", **relaxed), [1, 1, 0.5, 0.25, 0.125])
    np.testing.assert_allclose(rates("agreement", "lstm", **relaxed), [1] * 5)


def test_two_hops_and_far_lengths_have_presets_of_their_own():
    choose = find_experiment("number_prediction").default_preset
    assert [choose({"length": n}) for n in (11, 21, 51)] == ["relaxed", "two_hops", "far"]
    assert choose({}) == "relaxed"


def test_config_modules_need_no_jax():
    code = "import sys\nfrom dynskip_jax.cli import list_experiments\nlist_experiments()\n"
    code += "assert not {'jax', 'flax', 'scipy', 'pandas', 'matplotlib'} & {*sys.modules}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(found.stdout.splitlines()) > len(NAMES)


# --- Where settings come from ---


def test_flags_win_over_presets_and_presets_over_defaults():
    found = resolve(QuickSettings, {"small": {"epochs": 3, "clip": 1.0}}, "small", {"epochs": 5})
    assert (get(found.settings, "epochs"), get(found.settings, "clip")) == (5, 1.0)
    sources = {name: found.sources[name] for name in ("epochs", "clip", "seeds")}
    assert sources == {"epochs": "flag", "clip": "preset small", "seeds": "default"}
    assert found.settings.run.preset == "small"


def test_a_model_that_is_typed_replaces_that_of_a_preset():
    experiment = find_experiment("ptb")
    found = resolve(experiment.settings, experiment.presets, "far", {"compare": "lstm,fixed:2"})
    assert found.settings.run.models("x") == ("lstm", "fixed:2")
    assert found.typed_names == ("lstm", "fixed:2")
    assert resolve(experiment.settings, experiment.presets, "far", {}).typed_names == ()


@pytest.mark.parametrize(
    ("given", "seeds"),
    [(dict(seeds=3), (0, 1, 2)), (dict(seed=4, seeds=2), (4, 5)), (dict(seeds=(1, 5, 9)), (1, 5, 9))],
)
def test_seeds_are_a_number_or_a_list(given, seeds):
    assert tuple(fill(QuickSettings, given).run.all_seeds) == seeds


def test_a_run_of_another_format_is_refused(finished_quick):
    path = finished_quick.folder / "config.json"
    stored = read_config_file(QuickSettings, "quick", path)
    assert (stored["seeds"], stored["epochs"], stored["model"]) == (2, 2, "lstm")
    with pytest.raises(UserError, match="expected a run in format"):
        from_config(QuickSettings, {**load(path), "format": FORMAT - 1})
    with pytest.raises(UserError, match="of 'quick'"):
        read_config_file(QuickSettings, "ptb", path)


# --- Imports ---


def imports():
    """Return the modules that each module of the package imports, late and for type hints, too."""
    files = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")
    }
    names = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = {}
    for name, path in names.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                each = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {one if one in names else node.module for one in each}
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
        graph[name] &= names.keys() - {name}
    return graph


# Packages below the experiments, which are checked by their own tests.
BELOW = ("functional", "nn", "rl", "models", "tasks", "data", "training", "devices", "analysis")


def test_no_module_imports_itself_through_others():
    graph, done = imports(), set()
    graph = {
        name: others for name, others in graph.items() if name.split(".")[1:2] not in [[b] for b in BELOW]
    }

    def visit(name, path):
        assert name not in path, f"a circle of imports: {' -> '.join([*path, name])}"
        if name not in done:
            for other in graph[name] & graph.keys():
                visit(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
