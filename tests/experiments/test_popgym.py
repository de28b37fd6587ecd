"""Check agents in environments: training, resuming, errors in one line, watching, every model."""

import importlib
import re
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import (
    assert_picture,
    assert_user_error,
    execute,
    finished_run,
    load,
    records,
    row_of,
    succeed,
)
from gymnasium import spaces
from marks import and_slow

from dynskip_jax.agents.environments import Environments, describe
from dynskip_jax.agents.rollout import Episodes
from dynskip_jax.agents.trainer import AgentLearner
from dynskip_jax.cli import main as cli
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.errors import UserError
from dynskip_jax.rl import ppo
from dynskip_jax.runs import plan
from dynskip_jax.runs.load import load_run
from dynskip_jax.storage.folder import RunDir

POPGYM = find_experiment("popgym")
# Three updates of two episodes with a tiny network.
SMALL = ("--features", 4, "--batch-size", 2, "--passes", 1, "--minibatches", 2)
THREE_UPDATES = ("--env", "Short-v0", "--steps", 24, *SMALL)


class Short(gymnasium.Env):
    """Four steps; a reward of 1 for the first observation's number. It counts its own seeds."""

    observation_space = spaces.Dict({"seen": spaces.Discrete(3), "more": spaces.Box(0, 1, (2,))})
    action_space = spaces.Discrete(3, start=1)
    spoil = None  # what goes wrong at step 2

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.first = int(self.np_random.integers(3))
        return self.observed(), {}

    def observed(self):
        return {"seen": self.first if self.steps == 0 else 0, "more": np.ones(2, np.float32)}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        reward = float(action - 1 == self.first)
        if self.steps == 2 and self.spoil == "raises":
            raise ArithmeticError("a wheel came off\nsecond line")
        if self.steps == 2 and self.spoil == "closed":
            raise gymnasium.error.ClosedEnvironmentError("it is closed")
        if self.steps == 2 and self.spoil == "nan":
            reward = float("nan")
        return self.observed(), reward, self.steps == 4, False, {}


class Parts(Short):
    """Actions of two parts, and episodes that are cut off at a random length."""

    action_space = spaces.MultiDiscrete([2, 3])
    max_episode_length = 1  # it states less than it plays

    def step(self, action):
        self.steps += 1
        truncated = self.steps >= 6 or self.np_random.random() < 0.2
        return self.observed(), float(action[1] == self.first), False, truncated, {}


class Continuous(Short):
    action_space = spaces.Box(-1, 1, (1,))


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Register the environments of this file."""
    for kind in (Short, Parts, Continuous):
        gymnasium.register(f"{kind.__name__}-v0", kind)
    for spoil in ("raises", "closed", "nan"):
        gymnasium.register(f"{spoil}-v0", type(spoil, (Short,), {"spoil": spoil}))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, registered):
    """Return a finished comparison of two models, two seeds each."""
    folder = tmp_path_factory.mktemp("popgym") / "run"
    arguments = (*THREE_UPDATES, "--compare", "lstm,dynamic:3", "--seeds", 2)
    return finished_run(POPGYM, folder, *arguments)


def test_a_run_has_returns_of_all_modes_curves_and_a_table(finished):
    metrics = load(finished.folder / "result.json")["rows"][1]["metrics"]
    for name in ("test_return", "test_return_greedy", "test_return_sampled", "train_return_best"):
        assert len(metrics[name]["per_seed"]) == 2
        assert 0 <= metrics[name]["mean"] <= 4
    logged = records(finished.folder / "dynamic-3")
    assert [record["step"] for record in logged] == [8, 16, 24]
    assert all(len(record["train_return"]) == 2 for record in logged)
    assert_picture(finished.folder / "plots" / "dev_return.png")
    assert "test, greedy" in finished.outcome.out and "γ 0.99" in finished.outcome.out


def test_a_finished_run_may_have_more_steps_and_no_other_passes(finished):
    shorter = finished.folder / "lstm"
    arguments = (*THREE_UPDATES, "--model", "lstm", "--seeds", 2, "--run-dir", shorter)
    assert_user_error(execute(POPGYM, *arguments, "--passes", 2), "passes")


def test_the_temperature_falls_after_some_steps_and_stays_for_evaluation():
    flags = ("--model", "dynamic:3", "--cool-after", 8, "--halving-steps", 8)
    learner, *_ = built(*flags)
    assert [float(learner._policy_at(steps).temperature[0]) for steps in (0, 8, 16)] == [1, 1, 0.5]
    for mode in ("train", "greedy", "sample"):
        assert float(learner.policy(mode).temperature[0]) == 0.25
    sampled, *_ = built(*flags, "--relaxation", "none")
    assert float(sampled.policy().temperature[0]) == 1


def test_an_agent_learns_what_it_saw_at_the_first_step(tmp_path):
    """Random actions have a return of 1.33."""
    flags = ("--env", "Short-v0", "--steps", 6000, "--batch-size", 16, "--features", 16)
    succeed(POPGYM, *flags, "--model", "dynamic:4", "--learning-rate", 0.01, "--run-dir", tmp_path)
    metrics = row_of(tmp_path)["metrics"]
    assert metrics["test_return_greedy"]["mean"] > 3.5


def built(*flags):
    """Return the learner of a model, and the state before its first update."""
    arguments = [*map(str, (*THREE_UPDATES, *flags))]
    resolved, data = plan.read_data(POPGYM, cli.read_training(POPGYM, arguments)[0])
    planned = plan.plan(POPGYM, resolved, data).models[0]
    learner = planned.learner
    start = lambda: learner.start_state(planned.fit, jax.random.key(0)[None])
    return learner, start, learner.make_update(planned.fit.optimizer)


@pytest.mark.parametrize("way", ["soft", "none"])
def test_learning_reads_what_acting_did(way):
    """From the whole rows, with replayed choices, follow the actions that were sampled."""
    learner, start, _ = built("--env", "Parts-v0", "--model", "dynamic:3", "--relaxation", way)
    params = start().params
    params["logits"]["kernel"][...] *= 1000
    keys = jax.random.key(1)[None]
    policy = learner.policy()
    assert policy.mode == {"soft": "soft", "none": "sample"}[way]
    episodes = learner.player.play(params, range(2), keys, policy)
    own = jax.tree.map(lambda leaf: leaf[0], (params, episodes, policy))
    output, _ = jax.jit(learner._read)(*own)
    for t in range(episodes.lengths.max()):
        key = jax.random.fold_in(keys[0], t + 1)
        actions = ppo.sample_actions(output.logits[:, t], (2, 3), key)
        np.testing.assert_array_equal(actions, episodes.actions[0, :, t])


def test_a_killed_run_resumes_bit_for_bit(finished, tmp_path, monkeypatch):
    """Killed after each record, whether or not its checkpoint is written."""
    log = RunDir.log

    def killed(run, record):
        log(run, record)
        raise SystemExit("killed")

    arguments = (*THREE_UPDATES, "--model", "dynamic:3", "--seeds", 2, "--run-dir", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "log", killed)
        assert execute(POPGYM, *arguments).status == "killed"
    stop = AgentLearner.fit
    with monkeypatch.context() as patch:
        patch.setattr(
            AgentLearner, "fit", lambda *a, **o: stop(*a, **o | {"should_stop": lambda _: True})
        )
        assert execute(POPGYM, *arguments).status == 130
    succeed(POPGYM, *arguments)
    assert records(tmp_path) == records(finished.folder / "dynamic-3")
    ours = load_run(tmp_path).all_params
    theirs = load_run(finished.folder, "dynamic:3").all_params
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


USUAL = (
    "content:3",
    "skip_rnn",
    "lstm --transition slstm",
    "dynamic:3 --num-layers 2",
    "dynamic:3 --control untrained",
)
MODELS = (
    *USUAL,
    "fixed:3",
    "attention:3",
    "log_dynamic:4",
    "random:3",
    "lstm --transition gru",
    "lstm --transition min_gru",
    "lstm --transition ind_rnn",
)


@pytest.mark.parametrize("model", and_slow(MODELS, USUAL.__contains__))
def test_every_model_is_a_memory(model):
    """The step and the update are traced, not compiled."""
    learner, start, update = built("--model", *model.split())
    state = jax.eval_shape(start)
    keys = jax.random.key(0)[None]
    policy = learner.policy()
    carry = learner.player.begin.eval_shape(state.params, keys)
    shape = lambda dtype, *more: jax.ShapeDtypeStruct((1, 2, *more), dtype)
    observed = shape(jnp.float32, 5)
    step = (observed, shape(jnp.int32, 1))
    after, acted, choices = learner.player.act.eval_shape(
        state.params, carry, *step, 0, keys, policy, False
    )
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry)
    steps = (observed, acted, choices, shape(jnp.float32), shape(bool), shape(bool))
    episodes = jax.tree.map(lambda leaf: shape(leaf.dtype, 8, *leaf.shape[2:]), steps)
    rates = jax.ShapeDtypeStruct((1,), jnp.float32)
    new, _ = update.eval_shape(state, Episodes(*episodes), rates, policy)
    assert jax.tree.map(jnp.shape, new.params) == jax.tree.map(jnp.shape, state.params)


def test_an_episode_is_watched(finished, tmp_path):
    page = tmp_path / "page.html"
    shown = succeed(POPGYM, "watch", "--run-dir", finished.folder, "--html", page)
    assert "dynamic:3: return" in shown.out and "in 4 steps" in shown.out
    assert_picture(finished.folder / "plots" / "watch-dynamic-3-0-0.png")
    assert "→" in shown.out
    written = page.read_text()
    assert written.count("<h2>") == 2 and written.count("data:image/png") == 1
    ids = re.findall(r'id="(.*?)"', written)
    links = re.findall(r'href="#(.*?)"', written)
    assert len(ids) == len(set(ids)) == 8 and links and set(links) <= set(ids)


# --- Environments ---


def test_equal_seeds_give_equal_episodes_and_others_do_not():
    info = describe("Short-v0")
    environments = Environments(info, 8)
    first = environments.reset(range(8))
    assert first.shape == (8, 5)
    environments.step(np.zeros((8, 1), int))
    np.testing.assert_array_equal(environments.reset(range(8)), first)
    assert (environments.reset(range(8, 16)) != first).any()


def test_what_concentration_tells_is_a_match():
    importlib.import_module("docs.told_concentration")
    game = gymnasium.make("ToldConcentrationEasy-v0", disable_env_checker=True)
    (_, told), _ = game.reset(seed=0)
    rng = np.random.default_rng(0)
    ended = False
    matches = 0
    while not ended:
        is_told = told.any()
        place = told.argmax() if is_told else rng.integers(len(told))
        (_, told), reward, terminated, truncated, _ = game.step(place)
        ended = terminated or truncated
        if is_told:
            matches += 1
            assert reward > 0
    assert matches > 10


def test_a_missing_extra_is_named(monkeypatch):
    name = "dynskip_jax.agents.environments"
    monkeypatch.setitem(sys.modules, "popgym", None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r'popgym is not installed: pip install -e "\.\[popgym\]"'):
        importlib.import_module(name)


def test_popgyms_names_are_short():
    info = describe("RepeatPreviousHard")
    assert (info.id, info.longest) == ("popgym-RepeatPreviousHard-v0", 155)


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ("RepeatPreviousHrad", ["there is no environment", "RepeatPreviousHard"]),
        ("Continuous-v0", ["Discrete or MultiDiscrete", "Box"]),
        ("raises-v0", ["failed in step", "ArithmeticError: a wheel came off"]),
        ("closed-v0", ["failed in step", "it is closed"]),
        ("nan-v0", ["expected finite rewards", "nan"]),
    ],
)
def test_what_is_wrong_with_an_environment_is_one_line(env, parts, tmp_path):
    flags = (*THREE_UPDATES, "--env", env, "--run-dir", tmp_path, "--model", "lstm")
    outcome = execute(POPGYM, *flags)
    *_, last = outcome.err.splitlines()  # after those of the progress
    assert_user_error(outcome._replace(err=f"{last}\n"), *parts)
