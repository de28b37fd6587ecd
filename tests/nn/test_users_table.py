"""Check what users try with the layers: each attempt works, or gets an error of one sentence."""

import copy
import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.errors import UserError
from dynskip_jax.nn import CharCNN, SkipCell, SkipLayers, SkipLSTM

pytestmark = pytest.mark.usefixtures("as_users")

X = jax.device_put(np.random.default_rng(7).normal(size=(2, 6, 3)).astype(np.float32))
KEY = jax.random.key(1)
LENGTHS = jax.device_put(np.array([6, 4], np.int32))
GREEDY = F.Policy("greedy")


def filled(shape, value=1, dtype=np.float32):
    """Return an array filled with `value`, without compiling a program for it."""
    return jax.device_put(np.full(shape, value, dtype))


whole = functools.partial(filled, dtype=np.int32)
truths = functools.partial(filled, dtype=bool)


def cell(K=4, hidden=8, **options):
    return drawn(lambda: SkipCell(3, hidden, F.Dynamic(K, 0.5), rngs=nnx.Rngs(0), **options))


def deep(depths, **options):
    """Return a stack of which the layers with a 1 in `depths` have a skip over depth."""
    return SkipLayers(
        [cell(depth_skip=F.ToOutput() if depth else None) for depth in depths], **options
    )


def layer(K=4, **options):
    return SkipLayers([cell(K)], **options)


def stack(hidden=8, **options):
    skips = [F.Previous(), F.Dynamic(3)]
    return drawn(lambda: SkipLSTM(3, hidden, rngs=nnx.Rngs(0), **{"skip": skips, **options}))


def evaluated(model):
    model.eval()
    return model


def carry_of(K=4, batch=2, hidden=8, **options):
    return cell(K, hidden, **options).initialize_carry((batch, 3), KEY)


# Attempts that are refused, each with an error of one sentence.


def run(x=X, **call):
    if "initial_carry" not in call:
        call = dict(rngs=KEY) | call
    return layer()(x, **call)


def start(**carry):
    return run(initial_carry=[carry_of(**carry)])


def step(carry=None, x=X[:, 0], **call):
    if carry is None:
        carry = carry_of()
    return cell()(carry, x, **call)


def policy(*mode, **options):
    return run(policy=F.Policy(*mode, **options))


def own(kind, **attributes):
    return type("Own", (kind,), attributes)


def choosing(skip_state=(), kind="previous", **choice):
    """Return what layers compute with a skip of one's own that makes this choice."""
    made = F.Choice(**choice)
    if skip_state is not None:
        made = (made, skip_state)
    skip = own(F.TimeSkip, observation_kind=kind, choose=lambda *_: made)(4)
    return stack(skip=[skip])(X)


def among(*slots):
    """Return what layers compute with candidates of one's own, the same at all steps."""
    candidates = own(F.Every, slots=lambda *_: np.array(slots))()
    return stack(skip=F.Dynamic(3, among=candidates))(X, rngs=KEY)


def tracing(decide):
    """Return what layers compute with a skip of one's own that has this trace."""
    trace = lambda _, params, inputs, *__: decide(jnp.zeros(inputs.step.shape))
    return stack(skip=[own(F.TimeSkip, fixed_slot=1, trace=trace)(2)])(X)


def agent(policy=None, choose=lambda *_: (F.Choice(slot=whole(2)), ()), **attributes):
    """Return what layers compute with an agent of one's own, by default of two slots."""
    methods = dict(
        init=lambda *_: F.LSTMState(X[0], X[0]),
        choose=choose,
        trace=lambda _, params, inputs, *__: F.Decision(*[jnp.zeros(inputs.step.shape)] * 3),
    )
    skip = own(F.TimeSkip, **methods, **attributes)(4)
    return stack(skip=[skip])(X, rngs=None if skip.num_choices == 0 else KEY, policy=policy)


def multiplying(*addends, **how):
    """Return what layers compute with a transition of one's own that calls `dense` like this."""
    step = lambda _, params, x, s, dense, hook: (dense(params.w_h, s.h, *addends, **how), s.c)
    return stack(transition=own(F.LSTM, step=step)())(X, rngs=KEY)


def decisions():
    return F.DecisionTrace(whole((2, 4)), filled((2, 4), -1), filled((2, 4)))


def a_row():
    return jax.tree.map(lambda leaf: leaf[:1], decisions())


REFUSED = {
    "an unknown mode": (lambda: policy("Sample"), "unknown mode 'Sample': choose one of sample, greedy"),
    "a mode": (lambda: run(policy="greedy"), "policy is a Policy"),
    "τ = 0": (lambda: policy("soft", temperature=0.0), r"a temperature \(τ\) lies above 0, got 0.0"),
    "two τ": (lambda: policy("soft", temperature=filled((2, 1))), r"a single number, got float32 \(2, 1\)"),
    "λ > 1": (lambda: policy(mix=1.5), r"mix \(λ\) lies between 0 and 1, got 1.5"),
    "mask of K": (lambda: policy(mask=truths(3)), r"\(K,\) = \(4,\) or \(batch, K\), got bool \(3,\)"),
    "mask of numbers": (lambda: policy(mask=whole(4)), "mask is an array of booleans, got int32"),
    "masks": (lambda: stack()(X, policy=F.Policy(mask=(truths(3),)), rngs=KEY), "as many masks, got 1"),
    "no key": (lambda: run(rngs=None), r"pass rngs=, a PRNG key or nnx.Rngs. After .eval\(\)"),
    "random skips": (lambda: evaluated(stack(skip=F.Random(3)))(X), "only F.Random .* always need it"),
    "cell without key": (lambda: step(cell().initialize_carry((2, 3))), "carry has no keys: make the carry"),
    "ignored key": (lambda: run(initial_carry=[carry_of()], rngs=KEY), "rngs= has no effect: choices"),
    "dropout without key": (lambda: stack(dropout=0.5)(X, policy=GREEDY), "this layer draws"),
    "legacy key": (lambda: run(rngs=jax.random.PRNGKey(0)), r"got uint32 \(2,\) .*legacy"),
    "weights' keys": (lambda: run(weight_key=jax.random.split(KEY)), r"one key, .* got \(2,\)"),
    "rollouts' keys": (lambda: run(X[None], rngs=jax.random.split(KEY, 3)), r"\(1, 2\), got \(3,\)"),
    "a row's keys": (lambda: run(X[0], rngs=jax.random.split(KEY, 3)), r"example, \(\), got \(3,\)"),
    "three keys": (lambda: run(rngs=jax.random.split(KEY, 3)), r"or one per example, \(2,\), got \(3,\)"),
    "one key": (lambda: run(initial_carry=[carry_of()._replace(key=KEY)]), r"per example, \(2,\), got \(\)"),
    "carry of K": (lambda: start(K=3), "expected a carry with K = 4 slots, got one with 3"),
    "carry of batch": (lambda: start(batch=5), r"the inputs' batch \(2,\), got one of \(5,\)"),
    "carry of GRU": (lambda: start(transition=F.GRU()), "a carry of LSTMState, got one of GRUState"),
    "other skip": (lambda: stack(skip=[F.SkipRNN()])(X, initial_carry=[carry_of(K=1)]), "of another skip"),
    "Flax's carry": (lambda: run(initial_carry=[(X, X)]), "expected a SkipCarry, .* got a tuple"),
    "one carry": (lambda: run(initial_carry=carry_of()), "initial_carry is a tuple, one for each layer"),
    "resets of numbers": (lambda: run(resets=whole((2, 6))), r"booleans, \(batch, time\) = \(2, 6\), got int32"),
    "resets of a cell": (lambda: step(resets=truths((2, 1))), r"\(\*batch,\) = \(2,\), got bool \(2, 1\)"),
    "resets and ids": (
        lambda: run(resets=truths((2, 6)), segment_ids=whole((2, 6))),
        "both say where sequences begin: pass one",
    ),
    "lengths as list": (lambda: run(seq_lengths=[6, 4]), "array of whole numbers, .* got a list"),
    "one length": (lambda: run(seq_lengths=6), "got a int"),
    "wide weights": (
        lambda: F.unroll(cell().params(), carry_of(param_dtype=jnp.bfloat16), X, cell().recurrence),
        r"is bfloat16, got float32 in params.*make the carry in",
    ),
    "tokens": (lambda: run(whole((2, 6, 3))), "of floats, got int32 .* embed tokens first"),
    "a vector": (lambda: run(filled(3)), r"expected inputs \(\*batch, time, 3\), got float32 \(3,\)"),
    "inputs as list": (lambda: run([[0.0, 1.0, 2.0]]), "got a list"),
    "unroll without time": (
        lambda: F.unroll(cell().params(), carry_of(), X[:, 0], cell().recurrence),
        r"expected inputs \(batch, time, in\), got float32 \(2, 3\)",
    ),
    "Flax's cell": (
        lambda: SkipLayers([nnx.LSTMCell(3, 8, rngs=nnx.Rngs(0))]),
        "SkipLayers runs SkipCells, got LSTMCell: nnx.RNN runs other cells",
    ),
    "our layer in Flax's": (lambda: nnx.RNN(layer())(X), "call them without nnx.RNN, which runs a SkipCell"),
    "a skip's name": (lambda: stack(skip="dynamic:5"), r"skip=functional.parse_time_skip\('dynamic:5'\)"),
    "a class": (lambda: cell(transition=F.GRU), r"transition=functional.GRU\(\), got <class"),
    "a depth class": (lambda: cell(depth_skip=F.ToOutput), r"functional.ToOutput\(gated=True\), got <class"),
    "dropped weights": (
        lambda: nnx.RNN(cell(weight_dropout=0.5))(X, rngs=nnx.Rngs(0)),
        "weight_dropout drops the same weights at all steps, which a cell alone cannot",
    ),
    "cell without mask": (
        lambda: cell(recurrent_dropout=0.5)(carry_of(), X[:, 0]),
        r"recurrent_dropout needs a mask, .* initialize_carry\(input_shape, rngs\), or call .eval",
    ),
    "actions of shape": (lambda: run(actions=[whole((2, 5))]), r"time\) = \(2, 6\), got int32 \(2, 5\)"),
    "actions beyond K": (lambda: run(actions=[whole((2, 6), 9)]), "actions lie between 1 and 4, got 9"),
    "cell's actions": (lambda: step(action=np.array([9, -3])), "lie between 1 and 4, got -3 to 9"),
    "too few actions": (lambda: stack()(X, actions=[None]), "need as many of actions, got 1"),
    "below": (lambda: step(below=filled((2, 8))), "no skip over depth: leave out below"),
    "dropout of 1.5": (lambda: layer(dropout=1.5), r"dropout or zoneout lies in \[0, 1\), got 1.5"),
    "implementation": (lambda: layer(implementation="quick"), "unknown implementation"),
    "reverse": (lambda: stack(bidirectional=True, reverse=True), "reverse is for one direction"),
    "sizes": (lambda: stack([3, 4, 8], skip=F.Previous(), depth_skip=F.ToOutput()), "to one of size 8"),
    "sizes and skips": (lambda: stack([3, 4], skip=[F.Previous()] * 3), "skip for 3, hidden_features for 2"),
    "one cell's options": (lambda: stack(cell=[{}]), "expected one cell or 2, one for each layer, got 1"),
    "no layers": (lambda: stack(skip=[]), "at least one layer"),
    "rates of dropout": (lambda: stack(dropout=[0.1] * 2), "2 layers have 3 places for dropout, got 2 rates"),
    "rates of zoneout": (lambda: stack(zoneout=[0.1] * 3), "zoneout has one rate, or one for each of"),
    "features": (lambda: SkipLayers([cell(), cell()]), "2 has in_features=3, and the layer below returns 8"),
    "size of sources": (lambda: stack([8, 4], depth_skip=F.AttentionToOutput()), r"of one size, got \[8\]"),
    "small gates": (lambda: cell(transition=F.SkimLSTM(2), depth_skip=F.ToGates()), "of another size"),
    "no choice": (choosing, "a slot or weights from Own.choose, got neither"),
    "no options": (agent, "Own.choose, got a slot, which trains no parameters: declare `num_choices`"),
    "a slot as weights": (
        lambda: agent(F.Policy("soft"), num_choices=4),
        "expected weights from Own.choose in mode 'soft', got a slot: return weights, or write `mode_of`",
    ),
    "no entropy": (
        lambda: tracing(lambda zeros: F.Decision(zeros.astype(int), zeros, None)),
        r"entropy of Own.trace to be floating \(2, 6\), got",
    ),
    "only a choice": (lambda: choosing(None, slot=whole(2)), "a Choice and the skip's state, got a Choice"),
    "a number as slot": (lambda: choosing(slot=2), r"slot of Own.choose to be integer \(2,\), got a int"),
    "weights of 3": (lambda: choosing(weights=filled((2, 3))), r"floating \(2, 4\), got float32 \(2, 3\)"),
    "an update": (lambda: choosing(slot=whole(2), update=filled(2)), "if writes_all is False"),
    "kind of observation": (
        lambda: choosing(kind="all"),
        "unknown Own.observation_kind 'all': choose one of previous",
    ),
    "an addend": (lambda: multiplying(1.0), "`dense` adds arrays of 32 features, got a float"),
    "relu": (lambda: multiplying(activations=("relu",)), r"tanh, sigmoid or linear, got \('relu',"),
    "a dict": (lambda: cell(transition=own(F.LSTM, init=lambda *_: {})()), "named tuple of .* got a dict"),
    "w_hh": (lambda: cell(transition=own(F.LSTM, recurrent=("w_hh",))(), weight_dropout=0.5), "return: w_hh"),
    "a list": (lambda: cell(transition=own(F.LSTM, init=lambda *_: F.LSTMState([], 1))()), "named tuple of"),
    "partitioned": (lambda: cell(kernel_init=lambda *_: nnx.VariableMetadata(X)), "returns an array"),
    "slots": (lambda: among(1, 2, 3), r"to have 3 different slots in 0..2, 0 first, got \[1 2 3\]"),
    "equal slots": (lambda: among(0, 2, 2), r"to have 3 different slots in 0..2, 0 first, got \[0 2 2\]"),
    "a trace": (lambda: tracing(lambda zeros: (zeros, zeros)), "Own.trace to return a Decision, got a tuple"),
    "a trace of K": (
        lambda: tracing(lambda zeros: F.Decision(zeros.astype(int), zeros[..., None], zeros)),
        r"log_prob of Own.trace to be floating \(2, 6\), got float32 \(2, 6, 1\)",
    ),
    "a forgotten state": (
        lambda: own(F.TimeSkip, observation_kind="slots", forgets_carried=True, writes_all=False)(3),
        "with forgets_carried it observes `previous`",
    ),
    "candidates": (lambda: F.Dynamic(3, among=F.LogSpaced), r"to be Candidates, such as LogSpaced\(\)"),
    "no λ": (lambda: F.Dynamic(3, mix=None), r"mix \(λ\) is a single number, got a NoneType"),
    "dtype": (lambda: cell(dtype=jnp.int32), "expected dtype to be floating, got int32"),
    "rngs as key": (lambda: SkipLSTM(3, 4, rngs=KEY), r"nnx.Rngs, such as nnx.Rngs\(0\), got key"),
    "no stream in calls": (lambda: layer(call_rngs=nnx.Rngs(params=0)), "rngs has no stream `carry`"),
    "no stream": (lambda: run(rngs=nnx.Rngs(params=0)), "rngs has no stream `carry`"),
    "4.0 units": (lambda: stack(4.0), "hidden_features to be a whole number of at least 1, got 4.0"),
    "K of 3.0": (lambda: F.Dynamic(3.0), r"max_skip \(K\) to be a whole number of at least 1, got 3.0"),
    "no units": (lambda: stack(0), "hidden_features to be a whole number of at least 1, got 0"),
    # A depth skip of one layer alone once read that layer's own input, or the output of its forward
    # half.
    "depth of one": (lambda: deep([1]), "layer 1 has a skip over depth, .* from 2 layers below"),
    "depth of two": (lambda: deep([0, 1]), "layer 2 has a skip over depth, .* from 2 layers below"),
    "both ways": (lambda: deep([0, 0, 1, 1], bidirectional=True), "skip over depth, .* from 2 layers below"),
    "reward": (lambda: rl.reinforce(run(), filled((6, 4))), r"or \(2, 6\), .* got float32 \(6, 4\)"),
    "outputs as decisions": (lambda: rl.agent_loss(X, filled(2)), r"or its .decisions .* got float32"),
    "no decisions": (lambda: rl.entropy(()), "call DecisionTrace.of"),
    "values of rows": (
        lambda: rl.critic_loss(decisions(), filled(2), filled(2)),
        r"a value of each of its steps, got 1 layer",
    ),
    "one row": (lambda: rl.entropy(jax.tree.map(lambda leaf: leaf[0], decisions())), r"pass x\[None\]"),
    "loss of shape": (
        lambda: rl.loss(decisions(), filled(3)),
        r"nll to be \(2,\) or \(2, 4\), .* got float32",
    ),
    "weights of shape": (lambda: rl.loss(decisions(), filled(2), weights=filled(3)), r"weights to be \(2,\)"),
    "baseline of shape": (
        lambda: rl.loss(decisions(), filled(2), baseline=filled(3)),
        r"baseline to be \(2,\)",
    ),
    "reward of shape": (lambda: rl.agent_loss(decisions(), filled(3)), r"reward to be \(2,\) or \(2, 4\)"),
    "a baseline's name": (
        lambda: rl.loss(decisions(), filled(2), baseline="leave_one_out"),
        r"baseline to be a function \(rl.leave_one_out\), an array or a number, got a str",
    ),
    "two critics": (
        lambda: rl.loss(decisions(), filled(2), baseline=[None, None]),
        "got a list; with critics, call reinforce for each layer",
    ),
    "a row's discount": (
        lambda: rl.loss(decisions(), filled(2), discount=0.9),
        "discount is for a reward of each",
    ),
    "a critic's discount": (
        lambda: rl.critic_loss(decisions(), filled((2, 4)), filled(2), discount=0.9),
        "discount is for a reward of each step",
    ),
    "discount of 2": (
        lambda: rl.loss(decisions(), filled((2, 4)), discount=2),
        "discount lies between 0 and 1",
    ),
    "negative entropy": (lambda: rl.loss(decisions(), filled(2), entropy_coef=-1), "entropy_coef lies at 0"),
    "negative weights": (
        lambda: rl.loss(decisions(), filled(2), weights=filled(2, -1)),
        "weights to be numbers of at least 0, got -1",
    ),
    "one row to compare": (
        lambda: rl.loss(a_row(), filled(1)),
        r"make rollouts with functional.rollouts\(x, 4\)",
    ),
    "one row of agents": (lambda: rl.agent_loss(a_row(), filled(1)), "leave_one_out compares a row"),
    "decay": (lambda: rl.moving_average(rl.MovingAverage(), 1.0, 1.5), r"decay lies in \[0, 1\), got 1.5"),
    "rollouts of a legacy key": (
        lambda: F.rollouts(jax.random.PRNGKey(0), 2),
        r"expected a PRNG key, .* got uint32 \(2,\) \(jax.random.PRNGKey makes legacy ones\)",
    ),
    "half a rollout": (lambda: F.rollouts(X, 1.5), "number of rollouts to be a whole number"),
    "depth of no layer": (
        lambda: stack(depth_skip=F.ToOutput()),
        r"has no effect in 2 layers: it begins at layer 3. Add layers, or leave it out",
    ),
    "depth without layers": (
        lambda: stack(skip=F.Previous(), depth_skip=F.Highway()),
        "it begins at layer 2",
    ),
    "a skip as number": (
        lambda: F.parse_time_skip(5),
        "name of a skip over time, such as 'dynamic:5', got 5",
    ),
    "a transition as number": (lambda: F.parse_transition(5), "name of a transition, such as 'gru', got 5"),
    "a depth skip as number": (lambda: F.parse_depth_skip(5), "unknown skip over depth 5"),
    "carry of a shape": (
        lambda: layer().initialize_carry((2, 6)),
        r"input_shape to be \(\*batch, 3\), .* \(2, 6\)",
    ),
    "a cell's carry of a shape": (
        lambda: cell().initialize_carry((2, 6)),
        r"to be \(\*batch, 3\), .* \(2, 6\)",
    ),
    "carry of half a row": (lambda: layer().initialize_carry(1.5), "number of sequences, got 1.5"),
    "one rollout": (lambda: rl.vimco(filled((1, 4))), "at least 2 rollouts, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(name):
    attempt, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as error:
        attempt()
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


def test_an_error_in_a_method_of_ones_own_says_which_inputs_are_missing_and_why():
    with pytest.raises(TypeError) as error:
        agent(choose=lambda _, params, inputs, *__: inputs.projected + params.h)
    assert error.value.__notes__[:2] == [
        "inputs.projected is None: Own has no method `project`",
        "inputs.noise is None: Own declares no `num_choices`",
    ]


WHOLE = {
    "SparseAttention.top": lambda value: F.SparseAttention(5, top=value),
    "LSTMJump.max_jump": lambda value: F.LSTMJump(value),
    "LSTMJump.read_steps": lambda value: F.LSTMJump(read_steps=value),
    "Every.size": lambda value: F.Every(value),
    "Segments.size": lambda value: F.Segments(value),
    "RecurrentHighway.depth": lambda value: F.RecurrentHighway(value),
    "SkimLSTM.small": lambda value: F.SkimLSTM(value),
    "max_skip": lambda value: F.Dynamic(value),
    "max_skip (K)": lambda value: F.Fixed(value),
    "num_layers": lambda value: stack(skip=F.Previous(), num_layers=value),
    "in_features": lambda value: SkipLSTM(value, 8, rngs=nnx.Rngs(0)),
    "hidden_features": lambda value: SkipLSTM(3, value, rngs=nnx.Rngs(0)),
    "agent_features": lambda value: cell(agent_features=value),
    "below_features": lambda value: cell(below_features=value),
    "steps": lambda value: F.length_mask(LENGTHS, value),
    "rollouts": lambda value: F.rollouts(X, value),
    "filters": lambda value: CharCNN(5, filters=value, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize(
    "value", [2.5, True, np.float32(2.0), "2", None, np.array([2, 3])], ids=repr
)
@pytest.mark.parametrize("name", WHOLE)
def test_what_is_counted_is_a_whole_number(name, value):
    if value is None and name in ("num_layers", "below_features"):
        return  # the default
    if name == "steps" and not isinstance(value, bool | float):
        return  # JAX itself refuses these, and may have symbolic numbers of steps
    field = name.partition(" ")[0]
    with pytest.raises(
        UserError, match=rf"{field}.* (whole number|one size for each|for each layer)"
    ):
        WHOLE[name](value)


NUMBERS = {
    "NaN as bias": lambda: F.SkipRNN(update_bias=float("nan")),
    "a flag as bias": lambda: F.SkipRNN(update_bias=True),
    "three output gates": lambda: F.LSTM(output_gate=3),
    "a name as flag": lambda: F.ToOutput(gated="yes"),
    "complex λ": lambda: F.Fixed(2, mix=0.5 + 0j),
    "a flag as λ": lambda: F.Fixed(2, mix=True),
    "NaN as forget bias": lambda: cell(forget_bias=float("nan")),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_field_has_a_number_of_its_kind(name):
    with pytest.raises(UserError, match=r"update_bias|output_gate|gated|mix|forget_bias"):
        NUMBERS[name]()


def test_numbers_of_numpy_are_numbers():
    assert F.SparseAttention(np.int64(5), top=np.int32(2)) == F.SparseAttention(5, top=2)
    assert F.LSTM(output_gate=np.True_) == F.LSTM()
    assert hash(F.Every(np.int8(2))) == hash(F.Every(2))


# Attempts that work.


def test_rollouts_of_a_carry_repeat_rows_and_split_keys():
    """Regression: copies of keys made all rollouts equal, so that nothing was learnt, silently."""
    carry = layer().initialize_carry(2, KEY)
    rolled_carry, x = F.rollouts((carry, X), 3)
    assert rolled_carry[0].key.shape == (3, 2) and x.shape == (3, *X.shape)
    bits = np.asarray(jax.random.key_data(rolled_carry[0].key)).reshape(6, -1)
    assert len({tuple(row) for row in bits}) == 6
    np.testing.assert_array_equal(
        rolled_carry[0].slots.h, np.repeat(carry[0].slots.h[None], 3, axis=0)
    )
    actions = np.asarray(run(x, initial_carry=rolled_carry).decisions[0].action)
    assert (actions[0] != actions[1]).any() and (actions[1] != actions[2]).any()
    assert F.rollouts(KEY, np.int64(3)).shape == (3,)
    alone = F.rollouts(carry, 1)  # one rollout of rows of its own keys is fine
    run(X[None], initial_carry=alone)


@pytest.mark.parametrize("shape", [2, np.int64(2), (2, 3)], ids=str)
def test_carries_of_cells_and_layers_take_flax_shapes_and_numbers_of_rows(shape):
    for carry in (*layer().initialize_carry(shape), cell().initialize_carry(shape)):
        assert carry.slots.h.shape == (2, 4, 8)
    assert layer().initialize_carry((5, 2, 3))[0].slots.h.shape == (5, 2, 4, 8)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of Flax's own attributes
def test_layers_can_be_inspected():
    """Regression: a property that raised broke `hasattr` and `inspect.getmembers`."""
    assert not hasattr(layer(), "num_feature_axes")
    assert "cells" in dict(inspect.getmembers(layer()))


def test_actions_that_a_mask_allows_are_replayed():
    policy = F.Policy(mask=np.arange(8).reshape(2, 4) != 4)
    run(actions=[whole((2, 6)) + np.array([[0], [1]])], policy=policy)
    run(actions=[whole((2, 6))], policy=F.Policy(mask=np.zeros(4, bool)))  # State(t-1) is left


def same(a, b, **tolerance):
    tolerance = tolerance or dict(rtol=1e-5, atol=1e-6)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
            y = jax.random.key_data(y)
        np.testing.assert_allclose(x, y, **tolerance)


class Model(nnx.Module):
    """A model with Flax's dropout and modules of this library."""

    def __init__(self, rngs):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.layer = SkipLayers([SkipCell(3, 3, F.Dynamic(3), recurrent_dropout=0.5, rngs=rngs)])
        self.characters = CharCNN(5, filters=2, dropout=0.5, rngs=rngs)

    def __call__(self, x):
        return self.layer(self.dropout(x), rngs=KEY).h


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_view_sets_every_module_and_leaves_the_model_alone(deterministic):
    model = drawn(lambda: Model(nnx.Rngs(0)))
    (model.train if deterministic else model.eval)()
    view = nnx.view(model, deterministic=deterministic)
    modes = lambda model: [
        m.deterministic for _, m in nnx.iter_modules(model) if hasattr(m, "deterministic")
    ]
    assert len(modes(view)) == 4 and set(modes(view)) == {deterministic}
    assert set(modes(model)) == {not deterministic}
    (model.eval if deterministic else model.train)()
    np.testing.assert_array_equal(compiled(view)(X), compiled(model)(X))


@pytest.mark.slow
def test_evaluation_needs_no_key_chooses_greedily_and_drops_nothing():
    dropping = evaluated(SkipLayers([cell(recurrent_dropout=0.5, weight_dropout=0.5)], dropout=0.5))
    same(dropping(X), layer()(X, policy=GREEDY, deterministic=True))
    same(nnx.RNN(dropping.cells[0])(X), dropping(X).h)


def test_a_model_that_is_made_in_a_transformation_has_the_same_static_part():
    make = lambda: SkipLSTM(3, 4, skip=F.Dynamic(2), rngs=nnx.Rngs(0))
    assert nnx.graphdef(nnx.eval_shape(make)) == nnx.graphdef(make())


def test_a_slot_beyond_k_is_the_last_one():
    same(choosing(slot=whole(2, 7)), choosing(slot=whole(2, 3)))


def test_training_samples_and_replayed_actions_reproduce_it():
    module = layer(call_rngs=nnx.Rngs(1))
    read = nnx.jit(lambda module: module(X, seq_lengths=LENGTHS))
    first = read(module)
    other = read(module)
    # Each call samples new actions.
    assert (first.decisions[0].action != other.decisions[0].action).any()
    again = compiled(module)(X, seq_lengths=LENGTHS, actions=[first.decisions[0].action])
    same(again, first, rtol=1e-6)


def test_no_batch_axis_and_two():
    module = evaluated(layer())
    time_major_layer = evaluated(layer(time_major=True))
    read = compiled(module)
    x = np.asarray(X)
    whole = read(X, seq_lengths=LENGTHS)
    same(jax.tree.map(lambda leaf: np.asarray(leaf)[1], whole), read(x[1], seq_lengths=np.int32(4)))
    lengths = np.asarray(LENGTHS)[None]
    both = read(x[None], seq_lengths=lengths)
    assert both.h.shape == (1, 2, 6, 8)
    same(jax.tree.map(lambda leaf: np.asarray(leaf)[0], both), whole)
    time_major = compiled(time_major_layer)(np.moveaxis(x[None], 2, 0), seq_lengths=lengths)
    same(np.moveaxis(np.asarray(time_major.h), 0, 2), both.h)


@pytest.mark.slow
def test_vmap_over_seeds_equals_each_alone_and_draws_apart():
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def make(rngs):
        return SkipLSTM(3, 8, skip=F.Dynamic(4), rngs=rngs)

    graphdef, params = nnx.split(make(nnx.Rngs(0)))
    read = lambda params, key: nnx.merge(graphdef, params)(filled((8, 50, 3)), rngs=key)
    keys = jax.random.split(KEY, 3)
    # Each seed has the choices that it has when it is run alone.
    together = jax.vmap(read)(params, keys)
    for n in range(3):
        alone = read(jax.tree.map(lambda leaf, n=n: leaf[n], params), keys[n])
        same(jax.tree.map(lambda leaf, n=n: leaf[n], together), alone)
    # And they are not those of another seed.
    chosen = np.asarray(together.decisions[0].action)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert (chosen[i] == chosen[j]).mean() < 0.6


@pytest.mark.slow
def test_jit_remat_and_grad():
    module = layer()
    loss = lambda module, x: jnp.sum(module(x, rngs=KEY).h ** 2)
    plain = nnx.grad(loss)(module, X)
    same(nnx.jit(nnx.grad(loss))(module, X), plain)
    same(nnx.grad(nnx.remat(loss))(module, X), plain)
    # Merging inside jax.grad under jit works with replayed actions: no RNG counter changes.
    graphdef, state = nnx.split(layer(call_rngs=nnx.Rngs(3)))
    loss = lambda state: jnp.sum(nnx.merge(graphdef, state)(X, actions=[whole((2, 6))]).h)
    gradient = jax.jit(jax.grad(loss, allow_int=True))(state)
    assert np.isfinite(gradient["cells"][0]["weights"]["w_h"][...]).all()


@pytest.mark.slow
def test_forward_mode_needs_the_reference():
    def h(x, implementation):
        return layer(implementation=implementation)(x, policy=GREEDY).h

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: h(x, "fused"), (X,), (X,))
    _, tangent = jax.jvp(lambda x: h(x, "reference"), (X,), (X,))
    numeric = (h(X * 1.001, "reference") - h(X * 0.999, "reference")) / 0.002
    np.testing.assert_allclose(tangent, numeric, atol=2e-3)


@pytest.mark.slow
def test_copies_and_pickles():
    module = evaluated(layer())
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), nnx.clone(module)):
        same(again(X), module(X))
    (carry,), out = module(X, return_carry=True)
    same(pickle.loads(pickle.dumps(out)), out)
    same(copy.deepcopy(carry.slots), carry.slots)


# Noise, and carries that are passed from call to call.


def test_a_carry_made_in_evaluation_does_not_repeat_its_noise_in_training():
    """Regression: the carry's key was a constant, so that all calls sampled the same choices."""
    module = evaluated(layer())
    x = np.ones((8, 20, 3), np.float32)
    carry, _ = compiled(module)(x, return_carry=True)
    module.train()
    run = lambda key: np.asarray(
        compiled(module)(x, initial_carry=carry, rngs=key).decisions[0].action
    )
    np.testing.assert_array_equal(run(KEY), run(KEY))
    assert (run(KEY) == run(jax.random.key(2))).mean() < 0.6


def test_a_layer_draws_the_mask_that_a_carry_lacks():
    run = compiled(SkipLayers([cell(recurrent_dropout=0.5)]))
    x = np.asarray(X)
    (start,), _ = run(x[:, :1], deterministic=True, return_carry=True)
    assert start.recurrent_mask is None and start.key is None
    how = dict(initial_carry=[start], policy=GREEDY, return_carry=True)
    (end,), found = run(x, rngs=KEY, **how)
    np.testing.assert_array_equal(found.h, run(x, rngs=KEY, **how)[1].h)
    other = run(x, rngs=jax.random.key(2), **how)[1]
    for without in (other, run(x, initial_carry=[start], deterministic=True)):
        assert not np.allclose(found.h, without.h)
    assert end.recurrent_mask is None
    with pytest.raises(UserError, match="this layer draws"):
        run(x, **how)


def test_a_cell_in_evaluation_drops_nothing_whatever_its_carry_holds():
    dropped = cell(recurrent_dropout=0.5)
    x = np.ones((4, 3), np.float32)
    carry = dropped.initialize_carry(x.shape, KEY)
    assert carry.recurrent_mask is not None
    step = compiled(evaluated(dropped))
    end, _ = step(carry, x)
    expected = step(step(carry._replace(recurrent_mask=None), x)[0], x)[1]
    np.testing.assert_array_equal(step(end, x)[1], expected)
    assert jax.tree.structure(end) == jax.tree.structure(carry)


def test_zoneout_says_nothing_of_the_choices_of_a_sequence_that_begins_in_the_same_row():
    begins = 4
    rows = 2000
    make = lambda: SkipLSTM(2, 3, skip=F.Dynamic(5), zoneout=0.5, rngs=nnx.Rngs(0))
    even = drawn(make, scale=0.0)
    carry = even.initialize_carry(rows, jax.random.key(0))
    ids = np.repeat(np.array([[0] * begins + [1] * 4]), rows, axis=0)
    output = compiled(even)(np.ones((rows, 8, 2), np.float32), segment_ids=ids, initial_carry=carry)

    # What the carry's key draws for the step at which the second sequence begins.
    steps = np.full((rows, 1), begins)
    masks = compiled(F.zoneout)(carry[0].key[:, None], steps, (0.5, 0.5), 3)
    stays = np.asarray(masks[0])[:, 0] == 1
    is_first = np.asarray(output.decisions[0].action) == 1
    for step, unit in np.ndindex(8, 3):
        stayed = is_first[stays[:, unit], step]
        moved = is_first[~stays[:, unit], step]
        # Both are binomial fractions of about 1,000 rows, so 0.07 is four standard deviations.
        assert abs(stayed.mean() - moved.mean()) < 0.07


# Lengths, masks, and what a loss needs.


@pytest.mark.parametrize(("dtype", "time", "reverse"), [("uint8", 300, False), ("int8", 128, True)])
def test_lengths_of_any_dtype(dtype, time, reverse):
    x = np.ones((2, time, 3), np.float32)
    lengths = np.array([17, 10])
    run = functools.partial(compiled(layer(reverse=reverse)), deterministic=True, return_carry=True)
    (carry,), found = run(x, seq_lengths=lengths.astype(dtype))
    np.testing.assert_array_equal(carry.step, lengths)
    np.testing.assert_array_equal(found.h, run(x, seq_lengths=lengths)[1].h)


def test_layers_of_different_k_have_masks_of_their_own():
    masks = (np.arange(5) == 3, np.arange(3) == 1)
    module = stack(skip=[F.Dynamic(5), F.Dynamic(3)])
    out = compiled(module)(X, policy=F.Policy("sample", mask=masks), rngs=KEY)
    assert [set(np.unique(trace.action)) for trace in out.decisions] == [{4}, {2}]


@pytest.mark.parametrize("kind", ["layers", "cell"])
def test_a_second_step_outside_of_jit_compiles_nothing(kind, caplog):
    module = evaluated(layer())
    carry = module.initialize_carry(np.int64(2))
    if kind == "layers":
        step = lambda carry, t: module(X[:, t : t + 1], initial_carry=carry, return_carry=True)[0]
    else:
        step = lambda carry, t: (module.cells[0](carry[0], X[:, t])[0],)
    carry = step(step(carry, 0), 1)
    with jax.log_compiles():
        step(carry, 2)
    assert not [record for record in caplog.records if "ompiling" in record.getMessage()]
