"""Check that presets match the released code and the papers, and reach what is trained."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import experiment_in
from flax import nnx
from marks import and_slow

from dynskip_jax.data import NumberPredictionData, make_corpus
from dynskip_jax.data.number_prediction import generate_splits
from dynskip_jax.devices.processes import Processes
from dynskip_jax.errors import UserError
from dynskip_jax.experiments import conll2003, imdb, number_prediction, ptb, settings, sst, train
from dynskip_jax.experiments.build import direction_of_descent, make_fit_settings, make_learner
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.number_prediction import NumberPrediction
from dynskip_jax.experiments.ptb import PTB
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.sweep import Sweep

LINES = [" ".join("abcdefghij")] * 70


def resolved(command, preset, **flags):
    """Return the settings of a preset, with some flags set."""
    return settings.resolve(
        command.settings_type, command.presets, "none", flags | {"preset": preset}
    ).settings


def ptb_settings(preset, **flags):
    return Flat(resolved(ptb.PTB, preset, **flags))


def number_settings(preset, **flags):
    return Flat(resolved(number_prediction.NumberPrediction, preset, **flags))


class Flat:
    """Settings without their groups."""

    def __init__(self, grouped):
        self.grouped = grouped

    def __getattr__(self, name):
        return settings.get(self.grouped, name)


def letters(name="letters"):
    return make_corpus(name, dict.fromkeys(("train", "dev", "test"), LINES), "here")


def build(experiment, data, model):
    """Return the learner and the fit settings of a model."""
    learner = make_learner(
        experiment, make_spec(model, experiment.settings), data, experiment.vocabulary(data)
    )
    return learner, make_fit_settings(experiment, make_spec(model, experiment.settings), learner)


@functools.cache
def build_ptb(preset, model="dynamic:5", **flags):
    """Return the learner and the fit settings of a preset, small enough to be initialized in a test."""
    return build(PTB(resolved(ptb.PTB, preset, **dict(features=40) | flags)), letters(), model)


@functools.cache
def build_numbers(preset, model="dynamic:10", **flags):
    data = NumberPredictionData(
        "number_prediction/length_11",
        generate_splits(11, 0, {"train": 200, "dev": 10, "test": 10}),
        "here",
    )
    flags = dict(features=40) | flags
    return build(NumberPrediction(resolved(number_prediction.NumberPrediction, preset, **flags)), data, model)


BUILDERS = {"ptb": build_ptb, "number_prediction": build_numbers}


@functools.cache
def model_of(learner):
    return learner.model(learner.init(jax.random.key(0)))


def cells_of(learner):
    return list(model_of(learner).stack.cells)


# --- Notes on the published rows ---


@pytest.mark.parametrize(
    ("preset", "size"),
    [("small", "2 x 200"), ("paper", None), ("charlm", None), ("awd_small", "2 x 200"), ("awd", None)],
)
def test_tables_say_where_models_have_other_sizes_than_published_ones(preset, size):
    experiment, corpus = PTB(resolved(ptb.PTB, preset)), letters("ptb")
    assert len(experiment.published(["lstm"], corpus)) == 1
    note = experiment.note(["lstm"], corpus)
    assert (size in note and "not comparable" in note) if size else not note
    assert experiment.published(["lstm"], letters()) == []


# --- Differences between the released code and the paper ---

# Setting: (value of `released`, value of `paper`), the same in both experiments. None: any other value.
RELEASED_AND_PAPER = {
    "agent_input": ("mean", "previous"),
    "agent_init": ("normal", None),
    "first_step": ("carried", "agent"),
    "forget_bias": (1.0, 0.0),
    "entropy_coef": (0.0, 1.0),
    "evaluation_mode": ("sample", "greedy"),
}


@pytest.mark.parametrize("name", RELEASED_AND_PAPER)
@pytest.mark.parametrize("of", [ptb_settings, number_settings], ids=["ptb", "number_prediction"])
def test_released_differs_from_paper_as_the_released_code_does(of, name):
    released, paper = (getattr(of(preset), name) for preset in ("released", "paper"))
    assert released == RELEASED_AND_PAPER[name][0]
    assert (
        paper == RELEASED_AND_PAPER[name][1] if RELEASED_AND_PAPER[name][1] is not None else paper != released
    )


@pytest.mark.parametrize(
    ("of", "name", "released", "paper"),
    [
        (ptb_settings, "agent_features", 200, 50),
        (number_settings, "agent_features", 10, 50),
        (ptb_settings, "reward", "probability", "log_likelihood"),
        (number_settings, "reward", "correct", "log_likelihood"),
        (ptb_settings, "rl_coef", 0.3, 1.0),
        (ptb_settings, "restart_buffer", True, False),
        (ptb_settings, "num_layers", 3, 2),
        (ptb_settings, "recurrent_init", "orthogonal", "uniform"),
        (ptb_settings, "plateau", 1.0, None),
        (ptb_settings, "epochs", 100, 39),
        (number_settings, "mix", 1.0, 0.5),
    ],
)
def test_released_differs_from_paper_for_one_experiment(of, name, released, paper):
    assert getattr(of("released"), name) == released
    assert getattr(of("paper"), name) == paper


@pytest.mark.parametrize("of", [ptb_settings, number_settings], ids=["ptb", "number_prediction"])
def test_released_agrees_with_paper_on_the_rest_of_the_table(of):
    for preset in ("released", "paper"):
        assert of(preset).baseline == "none"
        assert of(preset).empty_slots == "initial"
        assert of(preset).entropy == "sampled"


@pytest.mark.parametrize("experiment", BUILDERS)
def test_precision_reaches_every_product_and_no_parameter(experiment):
    for precision, dtype in (
        ({}, "float32"),
        ({"precision": "f32"}, "float32"),
        ({"precision": "bf16"}, "bfloat16"),
    ):
        learner, _ = BUILDERS[experiment]("paper", **precision)
        model = learner.model(learner.abstract_params())
        for part in (model.softmax, *model.stack.cells):
            assert jax.numpy.dtype(part.dtype) == dtype
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {"float32"}


@pytest.mark.parametrize("experiment", BUILDERS)
def test_released_settings_reach_what_is_trained(experiment):
    learner, _ = BUILDERS[experiment]("released")
    skip, objective = learner.skips[-1], learner.objective
    assert (skip.name, skip.mix, skip.agent_input, skip.first_step) == ("dynamic", 1.0, "mean", "carried")
    assert skip.empty_slots == "initial"
    assert (objective.entropy_coef, objective.baseline, objective.discount) == (0.0, "none", 1.0)
    assert learner.evaluation_mode == "sample"
    if experiment == "ptb":
        assert (objective.reward, objective.rl_coef) == ("probability", 0.3)
        assert learner.task.restart_buffer
        assert [skip.has_agent for skip in learner.skips] == [False, False, True]
        assert skip.max_skip == 5
        assert [cell.hidden_features for cell in cells_of(learner)] == [40, 40, 40]
    else:
        assert objective.reward == "correct"
        assert skip.max_skip == 10


@pytest.mark.parametrize(("experiment", "units"), [("ptb", 200), ("number_prediction", 10)])
def test_released_agent_starts_from_a_normal_distribution(experiment, units):
    learner, _ = BUILDERS[experiment]("released", features=100)

    @jax.jit  # the initialization of the other parameters is not computed
    def agent_of(key):
        return nnx.state(learner.model(learner.init(key)).stack.cells[-1].agent)

    agent = agent_of(jax.random.key(0))
    assert agent.w_h.shape == (100, units)
    assert agent.w_out.shape == (units, learner.skips[-1].max_skip)
    weights = np.concatenate([np.ravel(agent.w_h[...]), np.ravel(agent.w_x[...]), np.ravel(agent.w_out[...])])
    # With n draws, the standard error of the standard deviation is σ / √(2n), and that of the mean σ / √n.
    # The tolerance is 5 of each.
    assert abs(weights.std() - 0.3) < 5 * 0.3 / np.sqrt(2 * weights.size)
    assert abs(weights.mean()) < 5 * 0.3 / np.sqrt(weights.size)
    # Two standard deviations are exceeded by 4.6% of normal values, and by no uniform ones.
    assert 0.02 < (np.abs(weights) > 0.6).mean() < 0.08
    np.testing.assert_allclose(agent.b[...], 0.1, rtol=1e-6)
    np.testing.assert_allclose(agent.b_out[...], 0.1, rtol=1e-6)


def gate_blocks(w_h):
    return np.split(np.asarray(w_h), 4, axis=1)


def test_released_recurrent_weights_are_orthogonal_in_the_dynamic_layer_alone():
    *below, top = cells_of(build_ptb("released")[0])
    for block in gate_blocks(top.weights.w_h[...]):
        np.testing.assert_allclose(block.T @ block, np.eye(40), atol=1e-5)
    assert len(below) == 2
    for cell in below:
        for block in gate_blocks(cell.weights.w_h[...]):
            assert 0.045 < np.abs(block).max() <= 0.05
    for cell in (*below, top):
        assert 0.045 < np.abs(cell.weights.w_x[...]).max() <= 0.05


def test_released_forget_gate_starts_open_in_the_dynamic_layer():
    top = cells_of(build_ptb("released")[0])[-1]
    g, i, f, o = np.split(np.asarray(top.weights.b[...]), 4)
    assert np.abs(f - 1.0).max() <= 0.05 + 1e-6
    assert max(np.abs(gate).max() for gate in (g, i, o)) <= 0.05
    cell = cells_of(build_numbers("released")[0])[-1]
    np.testing.assert_array_equal(cell.weights.b[...], np.repeat([0.0, 0.0, 1.0, 0.0], 40))


def test_released_schedule_divides_by_1_2_when_dev_improves_by_less_than_one():
    _, fit = build_ptb("released")
    assert fit.epochs == 100
    history = np.array([[200.0], [150.0], [149.5], [148.6], [140.0], [141.0]])
    rates = [fit.learning_rate(epoch, history[:epoch])[0] for epoch in range(7)]
    expected = [1, 1, 1, 1 / 1.2, 1 / 1.2**2, 1 / 1.2**2, 1 / 1.2**3]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    stalled = np.full((99, 1), 100.0)
    assert fit.learning_rate(99, stalled)[0] == 0.005


def test_released_baselines_have_three_layers_too():
    for model in ("lstm", "fixed:5", "attention:5"):
        learner, _ = build_ptb("released", model)
        assert len(learner.skips) == 3
        assert [skip.max_skip for skip in learner.skips[:2]] == [1, 1]


# --- Clipping ---


def last_name(value):
    """Return the last part of a module's dotted name, or of a text with dots."""
    return getattr(value, "__name__", value).split(".")[-1]


@pytest.mark.parametrize(
    ("module", "preset", "model"),
    [
        (ptb, "paper", "dynamic:5"),
        (ptb, "small", "dynamic:5"),
        (number_prediction, "paper", "dynamic:10"),
        (conll2003, "paper", "dynamic:5"),
        (imdb, "paper", "dynamic:3"),
        (sst, "paper", "dynamic:3"),
    ],
    ids=last_name,
)
def test_what_a_score_function_alone_trains_takes_no_share_of_the_networks_norm(module, preset, model):
    flags = {"clip": 5.0} if module is number_prediction else {}
    np.testing.assert_array_equal(
        networks_move(module, preset, model, 1e6, **flags), networks_move(module, preset, model, 0.0, **flags)
    )


@pytest.mark.parametrize(
    ("module", "preset", "model"),
    [
        (ptb, "paper", "attention:5"),
        (conll2003, "paper", "attention:5"),
        (sst, "paper", "attention:3"),
        (number_prediction, "two_hops", "dynamic:10"),  # choices are relaxed in the first epochs
    ],
    ids=last_name,
)
def test_what_learns_as_the_network_does_is_clipped_with_it(module, preset, model):
    assert (networks_move(module, preset, model, 1e6) != networks_move(module, preset, model, 0.0)).all()


def networks_move(module, preset, model, agents_gradient, **flags):
    """Return the update of the network's weights, given the agent's gradient."""
    params = {"w": jnp.ones(2), "agent": {"w": jnp.ones(2)}}
    gradient = {"w": jnp.array([30.0, 40.0]), "agent": {"w": jnp.full(2, agents_gradient)}}
    experiment = experiment_in(module)(resolved(experiment_in(module), preset, **flags))
    optimizer = direction_of_descent(experiment, make_spec(model, experiment.settings))
    return np.asarray(optimizer.update(gradient, optimizer.init(params), params)[0]["w"])


# --- The papers' presets ---


def test_small_is_the_small_model_of_zaremba_et_al():
    found = ptb_settings("small")
    published = dict(
        features=200,
        num_layers=2,
        num_steps=20,
        batch_size=20,
        dropout=0.0,
        init_scale=0.1,
        epochs=13,
        learning_rate=1.0,
        clip=5.0,
    )
    assert {name: getattr(found, name) for name in published} == published
    _, fit = build_ptb("small")
    rates = [fit.learning_rate(epoch, np.zeros((epoch, 1)))[0] for epoch in range(6)]
    assert rates == [1.0, 1.0, 1.0, 1.0, 0.5, 0.25]


def test_paper_is_the_language_model_of_gui_et_al():
    found = ptb_settings("paper")
    published = dict(
        features=650,
        num_layers=2,
        num_steps=35,
        batch_size=20,
        dropout=0.5,
        learning_rate=1.0,
        clip=5.0,
        init_scale=0.05,
        mix=1.0,
        agent_features=50,
        rl_coef=1.0,
        entropy_coef=1.0,
    )
    assert {name: getattr(found, name) for name in published} == published
    assert ptb.PTB.default_model == "dynamic:5"
    learner, _ = build_ptb("paper", ptb.PTB.default_model)
    assert [(skip.name, skip.max_skip, skip.mix) for skip in learner.skips] == [
        ("lstm", 1, 1.0),
        ("dynamic", 5, 1.0),
    ]


@pytest.mark.parametrize(("preset", "scale"), [("small", 0.1), ("paper", 0.05)])
def test_every_weight_is_drawn_from_one_uniform_distribution(preset, scale):
    params = build_ptb(preset)[0].init(jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        largest = np.abs(leaf).max()
        assert 0 < largest <= scale, jax.tree_util.keystr(path)
        if leaf.size > 100:
            assert largest > 0.9 * scale, jax.tree_util.keystr(path)


@pytest.mark.parametrize("preset", ["small", "paper"])
def test_gradients_are_clipped_at_five(preset):
    _, fit = build_ptb(preset)
    params = {"w": np.zeros(4, np.float32)}
    for size, expected in ((100.0, 5.0), (1.0, 1.0)):
        grads = {"w": np.float32([0, size, 0, 0])}
        updates, _ = fit.optimizer.update(grads, fit.optimizer.init(params), params)
        np.testing.assert_allclose(updates["w"], [0, expected, 0, 0], rtol=1e-5)


def test_number_prediction_of_gui_et_al():
    found = number_settings("paper")
    published = dict(features=200, learning_rate=0.001, mix=0.5, agent_features=50)
    assert {name: getattr(found, name) for name in published} == published
    assert number_prediction.NumberPrediction.default_model == "dynamic:10"


def test_flags_win_over_the_preset():
    found = ptb_settings("paper", features=8, epochs=3, mix=0.25, seeds=2)
    assert (found.features, found.epochs, found.mix, found.seeds) == (8, 3, 0.25, 2)
    assert found.preset == "paper"
    assert found.dropout == ptb_settings("paper").dropout


@pytest.mark.parametrize(
    ("preset", "model"),
    and_slow(
        itertools.product(number_prediction.PRESETS, ("lstm", "fixed:10", "attention:10", "dynamic:10")),
        lambda preset, model: preset == "paper" or model == "dynamic:10",
    ),
)
def test_every_number_prediction_preset_builds_every_model(preset, model):
    learner, _ = build_numbers(preset, model)
    assert learner.skips[0].has_agent == (model in ("attention:10", "dynamic:10"))


@pytest.mark.parametrize(
    ("preset", "model"),
    and_slow(
        itertools.product(ptb.PRESETS, ("lstm", "fixed:5", "attention:5", "dynamic:5")),
        lambda preset, model: preset == "small" or model == "dynamic:5",
    ),
)
def test_every_ptb_preset_builds_every_model(preset, model):
    learner, _ = build_ptb(preset, model)
    assert learner.skips[-1].has_agent == (model in ("attention:5", "dynamic:5"))


def test_each_length_has_a_preset_that_solves_it():
    preset = number_prediction.NumberPrediction.default_preset
    assert preset({}) == "relaxed"
    assert [preset({"length": length}) for length in (11, 21, 51)] == ["relaxed", "two_hops", "far"]
    assert {ptb.PTB.default_preset(given) for given in ({}, {"features": 8})} == {"small"}
    task, fit = build_numbers("relaxed", mix=0.5)
    modes = [task.scheduled(epoch).policy.mode for epoch in range(fit.epochs)]
    relaxed = modes.index("sample")
    assert set(modes[:relaxed]) == {"soft"} and set(modes[relaxed:]) == {"sample"}
    # The entropy coefficient falls below 0, which makes the policy nearly deterministic before choices are
    # sampled.
    weights = [float(task.scheduled(epoch).entropy_coef[0]) for epoch in range(relaxed)]
    assert weights == sorted(weights, reverse=True) and weights[0] > 0 > weights[-1]
    # Once choices are sampled, the learning rate decays; a model without choices keeps it.
    rates = [fit.learning_rate(epoch, np.zeros((epoch, 1)))[0] for epoch in range(relaxed + 2)]
    np.testing.assert_allclose(rates, [1e-3] * relaxed + [5e-4, 2.5e-4])
    lstm, fit = build_numbers("relaxed", "lstm")
    assert {lstm.scheduled(epoch).policy.mode for epoch in range(fit.epochs)} == {"sample"}
    assert {fit.learning_rate(epoch, np.zeros((epoch, 1)))[0] for epoch in range(fit.epochs)} == {1e-3}


def test_the_objective_of_the_paper_is_the_default_of_nothing_else():
    def objective(preset):
        return make_spec("dynamic:10", resolved(number_prediction.NumberPrediction, preset)).objective

    assert objective("paper") == AgentSettings()
    for preset in ("rollouts", "relaxed", "two_hops", "released"):
        assert objective(preset) != objective("paper")


def numbers(**flags):
    return NumberPrediction(resolved(number_prediction.NumberPrediction, "rollouts", **flags))


def test_sweeps_make_models_of_agents_alone():
    swept = numbers(mix=(0.1, 0.5), max_skip=(2, 4), seeds=3, seed=5)
    assert make_spec("dynamic:4", swept.settings).all_seeds == (5, 6, 7) * 4
    assert make_spec("dynamic:4", swept.settings).sweep == Sweep(
        mix=(0.1,) * 6 + (0.5,) * 6, max_skip=((2,) * 3 + (4,) * 3) * 2
    )
    assert make_spec("lstm", swept.settings).all_seeds == (5, 6, 7)
    assert make_spec("fixed:3", swept.settings).sweep == Sweep()
    alone = numbers(mix=0.25)
    assert (alone.settings.agent.mix, make_spec("dynamic:4", alone.settings).sweep) == (0.25, Sweep())
    assert make_spec("dynamic:4", alone.settings).skip.mix == 0.25


@pytest.mark.parametrize(
    ("name", "attention", "dynamic"),
    [("entropy_coef", 1, 2), ("temperature", 1, 2), ("learning_rate", 2, 2), ("mix", 2, 2)],
)
def test_a_sweep_is_over_what_a_model_has(name, attention, dynamic):
    """Attention samples no choices. Every model has a learning rate."""
    found = numbers(**{name: (0.25, 0.5)}, seeds=2)
    for model, count in (("attention:5", attention), ("dynamic:5", dynamic)):
        swept = {f: v for f, v in make_spec(model, found.settings).sweep._asdict().items() if v is not None}
        expected = {name: (0.25, 0.25, 0.5, 0.5)} if count == 2 and name != "learning_rate" else {}
        assert swept == expected
        assert make_spec(model, found.settings).all_seeds == (0, 1) * count
    assert len(make_spec("lstm", found.settings).values) == (2 if name == "learning_rate" else 1)


def test_swept_learning_rates_entropies_and_temperatures_reach_each_model():
    """All seeds of a value are adjacent.

    If several settings are swept, the last one changes fastest.
    """
    flags = dict(learning_rate=(0.001, 0.01), entropy_coef=(0.0, 0.5), seeds=2)
    learner, fit = build_numbers("rollouts", **flags)
    np.testing.assert_allclose(learner.scheduled(0).entropy_coef, [0] * 4 + [0.5] * 4)
    rates = fit.learning_rate(0, np.zeros((0, 8)))
    np.testing.assert_allclose(rates, [0.001, 0.001, 0.01, 0.01] * 2)
    learner, _ = build_numbers("relaxed", relaxation="gumbel_softmax", temperature=(0.5, 2.0))
    np.testing.assert_allclose(learner.scheduled(0).policy.temperature, [0.5, 2.0])
    learner, fit = build_ptb("paper", learning_rate=(1.0, 2.0))
    np.testing.assert_allclose(fit.learning_rate(0, np.zeros((0, 2))), [1, 2])
    np.testing.assert_allclose(fit.learning_rate(7, np.zeros((7, 2))), [1 / 1.2**2, 2 / 1.2**2])


def test_a_single_k_masks_the_policy_of_a_larger_one():
    found = numbers(max_skip=3)
    assert make_spec("dynamic:5", found.settings).sweep == Sweep(max_skip=(3,))
    assert make_spec("dynamic:5", found.settings).all_seeds == (0,)
    with pytest.raises(UserError, match="--max-skip 3 is beyond dynamic:2: name a larger k"):
        make_spec("dynamic:2", found.settings)


@pytest.mark.parametrize(
    ("seeds", "devices"), [(1, 1), (2, 2), (5, 5), (6, 6), (7, 7), (8, 8), (16, 8), (20, 5)]
)
def test_seeds_take_turns_on_the_cores_of_a_cpu(seeds, devices, monkeypatch):
    # The number of devices is the divisor of the number of seeds nearest to 8: four for each of two cores.
    monkeypatch.setattr(train, "_num_cores", lambda: 2)
    given = numbers(seeds=seeds)
    found = train.choose_devices(given, [make_spec("dynamic:10", given.settings)], Processes())
    assert jax.device_count() == 8
    assert len(found.devices) == devices


# --- Zoneout ---


@pytest.mark.parametrize("given", [(0.1,), (0.05, 0.25)])
def test_zoneout_is_in_every_cell_of_a_language_model(given):
    learner, _ = build_ptb("small", "lstm", zoneout=given)
    assert [cell.zoneout for cell in cells_of(learner)] == [given * (2 // len(given))] * 2


def test_zoneout_has_a_rate_for_each_array_of_a_state():
    with pytest.raises(UserError, match="one for each of"):
        cells_of(build_ptb("small", "lstm", zoneout=(0.1, 0.1, 0.1))[0])
