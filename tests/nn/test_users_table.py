"""Check what users try with the layers: each attempt works, or gets an error of one sentence."""

import functools

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
    "τ = 0": (lambda: policy("soft", temperature=0.0), r"a temperature \(τ\) lies above 0, got 0.0"),
    "mask of K": (lambda: policy(mask=truths(3)), r"\(K,\) = \(4,\) or \(batch, K\), got bool \(3,\)"),
    "no key": (lambda: run(rngs=None), r"pass rngs=, a PRNG key or nnx.Rngs, or call"),
    "cell without key": (lambda: step(cell().initialize_carry((2, 3))), "carry has no keys: make the carry"),
    "ignored key": (lambda: run(initial_carry=[carry_of()], rngs=KEY), "rngs= has no effect: choices"),
    "rollouts' keys": (lambda: run(X[None], rngs=jax.random.split(KEY, 3)), r"\(1, 2\), got \(3,\)"),
    "three keys": (lambda: run(rngs=jax.random.split(KEY, 3)), r"or one per example, \(2,\), got \(3,\)"),
    "carry of K": (lambda: start(K=3), "expected a carry with K = 4 slots, got one with 3"),
    "carry of GRU": (lambda: start(transition=F.GRU()), "a carry of LSTMState, got one of GRUState"),
    "Flax's carry": (lambda: run(initial_carry=[(X, X)]), "expected a SkipCarry, .* got a tuple"),
    "resets of a cell": (lambda: step(resets=truths((2, 1))), r"\(\*batch,\) = \(2,\), got bool \(2, 1\)"),
    "resets and ids": (
        lambda: run(resets=truths((2, 6)), segment_ids=whole((2, 6))),
        "both say where sequences begin: pass one",
    ),

    "wide weights": (
        lambda: F.unroll(cell().params(), carry_of(param_dtype=jnp.bfloat16), X, cell().recurrence),
        r"is bfloat16, got float32 in params.*make the carry in",
    ),
    "tokens": (lambda: run(whole((2, 6, 3))), "of floats, got int32 .* embed tokens first"),
    "Flax's cell": (
        lambda: SkipLayers([nnx.LSTMCell(3, 8, rngs=nnx.Rngs(0))]),
        "SkipLayers runs SkipCells, got LSTMCell: nnx.RNN runs other cells",
    ),
    "a skip's name": (lambda: stack(skip="dynamic:5"), r"skip=functional.parse_time_skip\('dynamic:5'\)"),
    "cell without mask": (
        lambda: cell(recurrent_dropout=0.5)(carry_of(), X[:, 0]),
        r"recurrent_dropout needs a mask, .* initialize_carry\(input_shape, rngs\), or call .eval",
    ),
    "actions of shape": (lambda: run(actions=[whole((2, 5))]), r"time\) = \(2, 6\), got int32 \(2, 5\)"),
    "actions beyond K": (lambda: run(actions=[whole((2, 6), 9)]), "actions lie between 1 and 4, got 9"),
    "dropout of 1.5": (lambda: layer(dropout=1.5), r"dropout or zoneout lies in \[0, 1\), got 1.5"),
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
    "weights of 3": (lambda: choosing(weights=filled((2, 3))), r"floating \(2, 4\), got float32 \(2, 3\)"),
    "an addend": (lambda: multiplying(1.0), "`dense` adds arrays of 32 features, got a float"),
    "slots": (lambda: among(1, 2, 3), r"to have 3 different slots in 0..2, 0 first, got \[1 2 3\]"),
    "rngs as key": (lambda: SkipLSTM(3, 4, rngs=KEY), r"nnx.Rngs, such as nnx.Rngs\(0\), got key"),
    "depth of two": (lambda: deep([0, 1]), "layer 2 has a skip over depth, .* from 2 layers below"),
    "reward": (lambda: rl.reinforce(run(), filled((6, 4))), r"or \(2, 6\), .* got float32 \(6, 4\)"),


    "loss of shape": (
        lambda: rl.loss(decisions(), filled(3)),
        r"nll to be \(2,\) or \(2, 4\), .* got float32",
    ),
    "two baselines": (
        lambda: rl.loss(decisions(), filled(2), baseline=[None, None]),
        "got a list: call reinforce for each layer, if each has another",
    ),

    "negative weights": (
        lambda: rl.loss(decisions(), filled(2), weights=filled(2, -1)),
        "weights to be numbers of at least 0, got -1",
    ),
    "one row to compare": (
        lambda: rl.loss(a_row(), filled(1)),
        r"make rollouts with functional.rollouts\(x, 4\)",
    ),
    "depth of no layer": (
        lambda: stack(depth_skip=F.ToOutput()),
        r"has no effect in 2 layers: it begins at layer 3. Add layers, or leave it out",
    ),
    "carry of a shape": (
        lambda: layer().initialize_carry((2, 6)),
        r"input_shape to be \(\*batch, 3\), .* \(2, 6\)",
    ),
    "one rollout": (lambda: rl.vimco(filled((1, 4))), "at least 2 rollouts, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(name):
    attempt, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as error:
        attempt()
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


WHOLE = {
    "SparseAttention.top": lambda value: F.SparseAttention(5, top=value),
    "Every.size": lambda value: F.Every(value),
    "RecurrentHighway.depth": lambda value: F.RecurrentHighway(value),
    "max_skip": lambda value: F.Dynamic(value),
    "num_layers": lambda value: stack(skip=F.Previous(), num_layers=value),
    "hidden_features": lambda value: SkipLSTM(3, value, rngs=nnx.Rngs(0)),
    "below_features": lambda value: cell(below_features=value),
    "rollouts": lambda value: F.rollouts(X, value),
    "filters": lambda value: CharCNN(5, filters=value, rngs=nnx.Rngs(0)),
}


# Every place refuses a fraction, and one place all that is no whole number.
NO_WHOLE = [(name, 2.5) for name in WHOLE]
NO_WHOLE += [("max_skip", value) for value in (True, np.float32(2.0), "2", None, np.array([2, 3]))]


@pytest.mark.parametrize(("name", "value"), NO_WHOLE)
def test_what_is_counted_is_a_whole_number(name, value):
    field = name.partition(" ")[0]
    says = rf"{field}.* (whole number|one size for each|for each layer)"
    with pytest.raises(UserError, match=says):
        WHOLE[name](value)


def test_a_field_has_a_number_of_its_kind():
    for skip in (F.SkipRNN, lambda value: cell(forget_bias=value)):
        with pytest.raises(UserError, match=r"update_bias|forget_bias"):
            skip(float("nan"))
    with pytest.raises(UserError, match="output_gate"):
        F.LSTM(output_gate=3)
    with pytest.raises(UserError, match="mix"):
        F.Fixed(2, mix=0.5 + 0j)
    assert F.SparseAttention(np.int64(5), top=np.int32(2)) == F.SparseAttention(5, top=2)
    assert F.LSTM(output_gate=np.True_) == F.LSTM()


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


def test_evaluation_needs_no_key():
    rates = dict(recurrent_dropout=0.5, weight_dropout=0.5, zoneout=0.5)
    module = evaluated(SkipLayers([cell(**rates)], dropout=0.5))
    assert jax.eval_shape(lambda: module(X).h).shape == (2, 6, 8)


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
    read = compiled(module)
    x = np.asarray(X)
    whole = read(X, seq_lengths=LENGTHS)
    same(jax.tree.map(lambda leaf: np.asarray(leaf)[1], whole), read(x[1], seq_lengths=np.int32(4)))
    lengths = np.asarray(LENGTHS)[None]
    both = read(x[None], seq_lengths=lengths)
    assert both.h.shape == (1, 2, 6, 8)
    same(jax.tree.map(lambda leaf: np.asarray(leaf)[0], both), whole)


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
