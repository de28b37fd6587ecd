"""Check what users try with the layers: each attempt gives a result, or an error of one sentence."""

# ruff: noqa: E501 (a row is a line)

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from jax import export

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.errors import UserError
from dynskip_jax.nn import SkipCell, SkipLayers, SkipLSTM
from dynskip_jax.nn.linear import Linear

pytestmark = pytest.mark.usefixtures("as_users")

X = jax.device_put(np.random.default_rng(7).normal(size=(2, 6, 3)).astype(np.float32))
KEY = jax.random.key(1)
LENGTHS = jax.device_put(np.array([6, 4], np.int32))
GREEDY = F.Policy("greedy")


def full(shape, value, dtype=float):
    """Return an array filled with `value`, without compiling a program for it."""
    return jax.device_put(np.full(shape, value, {int: np.int32, float: np.float32}.get(dtype, dtype)))


def ones(shape, dtype=float):
    return full(shape, 1, dtype)


def zeros(shape, dtype=float):
    return full(shape, 0, dtype)


def cell(K=4, seed=0, **options):
    return drawn(lambda: SkipCell(3, 8, F.Dynamic(K, 0.5), rngs=nnx.Rngs(seed), **options), seed)


def layer(K=4, **options):
    return SkipLayers([cell(K)], **options)


def stack(**options):
    skips = [F.Previous(), F.Dynamic(3)]
    return drawn(lambda: SkipLSTM(3, 8, skip=skips, rngs=nnx.Rngs(0), **options))


@functools.cache
def output_of_a_layer():
    return compiled(layer())(X, rngs=KEY)


def evaluated(model):
    model.eval()
    return model


def carry_of(K=4, batch=2, hidden=8, **options):
    make = lambda: SkipCell(3, hidden, F.Dynamic(K), rngs=nnx.Rngs(0), **options)
    return drawn(make).initialize_carry((batch, 3), KEY)


# Attempts that are refused, each with an error of one sentence.


REFUSED = {
    "an unknown mode": (lambda: F.Policy("Sample"), "unknown mode 'Sample': choose one of sample, greedy"),
    "a mode in place of a policy": (lambda: layer()(X, policy="greedy", rngs=KEY), "policy is a Policy"),
    "sampling without a key": (lambda: layer()(X), r"pass rngs=, a PRNG key or nnx.Rngs. After .eval\(\)"),
    "random skips without a key": (
        lambda: evaluated(SkipLayers([drawn(lambda: SkipCell(3, 8, F.Random(3), rngs=nnx.Rngs(0)))]))(X),
        "only F.Random and a policy that samples draw, and they always need it",
    ),
    "a carry without keys": (
        lambda: cell()(cell().initialize_carry((2, 3)), X[:, 0]),
        r"its carry has no keys: make the carry with initialize_carry\(input_shape, rngs\)",
    ),
    "a key that would be ignored": (
        lambda: layer()(X, initial_carry=layer().initialize_carry(2, KEY), rngs=KEY),
        "rngs= has no effect: choices continue with the keys of initial_carry",
    ),
    "layers without a key": (lambda: stack()(X), "this layer draws"),
    "dropout without a key": (lambda: stack(dropout=0.5)(X, policy=GREEDY), "this layer draws"),
    "a carry of another K": (
        lambda: layer(4)(X, initial_carry=[carry_of(3)]),
        "expected a carry with K = 4 slots, got one with 3",
    ),
    "a carry of another batch": (
        lambda: layer()(X, initial_carry=[carry_of(batch=5)]),
        r"the inputs' batch \(2,\), got one of \(5,\)",
    ),
    "a carry of another size": (
        lambda: layer()(X, initial_carry=[carry_of(hidden=9)]),
        "expected a carry of 8 features, got one of 9",
    ),
    "a carry of another transition": (
        lambda: layer()(X, initial_carry=[carry_of(transition=F.GRU())]),
        "expected a carry of LSTMState, got one of GRUState",
    ),
    "Flax's carry": (
        lambda: layer()(X, initial_carry=[(zeros((2, 8)), zeros((2, 8)))]),
        "expected a SkipCarry, as initialize_carry makes it, got a tuple",
    ),
    "one carry for a stack": (
        lambda: stack()(X, initial_carry=carry_of(3), rngs=KEY),
        "initial_carry is a tuple, one for each layer and direction",
    ),
    "a carry of another K into the cell": (
        lambda: cell(4)(carry_of(3), X[:, 0]),
        "expected a carry with K = 4 slots, got one with 3",
    ),
    "lengths in a list": (
        lambda: layer()(X, seq_lengths=[6, 4], rngs=KEY),
        "seq_lengths to be an array of whole numbers, .* got a list",
    ),
    "lengths of floats": (lambda: layer()(X, seq_lengths=ones(2), rngs=KEY), "got float32"),
    "one length": (lambda: layer()(X, seq_lengths=6, rngs=KEY), "got a int"),
    "lengths of another batch": (
        lambda: layer()(X, seq_lengths=ones(3, int), rngs=KEY),
        r"\(batch,\) = \(2,\), got int32 \(3,\)",
    ),
    "lengths beyond the end": (
        lambda: layer()(X, seq_lengths=np.array([6, 7]), rngs=KEY),
        "seq_lengths lie between 0 and 6, got 6 to 7",
    ),
    "tokens in place of vectors": (
        lambda: layer()(ones((2, 6, 3), int), rngs=KEY),
        "of floats, got int32 .* embed tokens first",
    ),
    "a single vector": (
        lambda: layer()(ones(3), rngs=KEY),
        r"expected inputs \(\*batch, time, 3\), got float32 \(3,\)",
    ),
    "inputs of another size": (
        lambda: layer()(ones((2, 6, 4)), rngs=KEY),
        r"expected inputs \(\*batch, time, 3\), got float32 \(2, 6, 4\)",
    ),
    "inputs of another size to a stack": (
        lambda: stack()(ones((2, 6, 4)), rngs=KEY),
        r"expected inputs \(\*batch, time, 3\), got float32 \(2, 6, 4\)",
    ),
    "inputs in a list": (lambda: layer()([[0.0, 1.0, 2.0]], rngs=KEY), "got a list"),
    "inputs to the pure function without time": (
        lambda: F.unroll(cell().params(), carry_of(), X[:, 0], cell().recurrence),
        r"expected inputs \(batch, time, in\), got float32 \(2, 3\)",
    ),
    "a legacy key": (
        lambda: layer()(X, rngs=jax.random.PRNGKey(0)),
        r"expected a PRNG key, such as jax.random.key\(0\), got uint32 \(2,\) .*legacy",
    ),
    "a number as a key": (lambda: layer()(X, rngs=0), "expected a PRNG key, .* got a int"),
    "keys of another batch": (
        lambda: layer()(X, rngs=jax.random.split(KEY, 3)),
        r"one key, or one per example, \(2,\), got \(3,\)",
    ),
    "a single key in a carry": (
        lambda: layer()(X, initial_carry=[carry_of()._replace(key=KEY)]),
        r"one key per example, \(2,\), got \(\): make it with `initial_carry`",
    ),
    "Flax's cell in our layer": (
        lambda: SkipLayers([nnx.LSTMCell(3, 8, rngs=nnx.Rngs(0))]),
        "SkipLayers runs SkipCells, got LSTMCell: nnx.RNN runs other cells",
    ),
    "our layer in Flax's": (lambda: nnx.RNN(layer())(X), "call them without nnx.RNN, which runs a SkipCell"),
    "the name of a skip": (lambda: SkipCell(3, 8, "dynamic:5", rngs=nnx.Rngs(0)), r"skip=functional.parse_time_skip\('dynamic:5'\)"),
    "the name of a transition": (lambda: SkipLSTM(3, 8, transition="gru", rngs=nnx.Rngs(0)), r"transition=functional.parse_transition\('gru'\)"),
    "dropped weights without the layer": (
        lambda: nnx.RNN(cell(weight_dropout=0.5))(X),
        "weight_dropout drops the same weights at all steps, which a cell alone cannot",
    ),
    "actions of another shape": (
        lambda: layer()(X, actions=[ones((2, 5), int)]),
        r"actions to be .*\(batch, time\) = \(2, 6\), got int32 \(2, 5\)",
    ),
    "actions beyond K": (lambda: layer()(X, actions=[full((2, 6), 9, int)]), "actions lie between 1 and 4, got 9"),
    "a mask of another K": (
        lambda: layer()(X, policy=F.Policy(mask=ones(3, bool)), rngs=KEY),
        r"a policy's mask is \(K,\) = \(4,\) or \(batch, K\), got bool \(3,\)",
    ),
    "a mask of numbers": (
        lambda: layer()(X, policy=F.Policy(mask=ones(4, int)), rngs=KEY),
        "a policy's mask is an array of booleans, got int32",
    ),
    "actions beyond K into the cell": (
        lambda: cell()(carry_of(), X[:, 0], action=np.array([9, -3], np.int32)),
        "actions lie between 1 and 4, got -3 to 9",
    ),
    "a source without a depth skip into the cell": (
        lambda: cell()(carry_of(), X[:, 0], below=ones((2, 8))),
        "no skip over depth: leave out below",
    ),
    "a carry without a mask into the cell": (
        lambda: cell(recurrent_dropout=0.5)(carry_of(), X[:, 0]),
        r"recurrent_dropout needs a mask, .* initialize_carry\(input_shape, rngs\), or call .eval",
    ),
    "a rate of dropout beyond 1": (lambda: layer(dropout=1.5), r"dropout or zoneout lies in \[0, 1\), got 1.5"),
    "an unknown implementation": (lambda: layer(implementation="quick"), "unknown implementation"),
    "actions for one layer of two": (lambda: stack()(X, actions=[None]), "need as many of actions, got 1"),
    "rewards of another shape": (
        lambda: rl.reinforce(layer()(X, rngs=KEY), zeros((6, 4))),
        r"expected an array of \(2,\) or \(2, 6\), as the decisions, got \(6, 4\)",
    ),
    "a class in the place of a transition": (
        lambda: cell(transition=F.GRU),
        r"expected transition=functional.GRU\(\), got <class",
    ),
    "a class for a skip over depth": (
        lambda: SkipCell(3, 8, F.Previous(), depth_skip=F.ToOutput, rngs=nnx.Rngs(0)),
        r"expected depth_skip=functional.ToOutput\(gated=True\), got <class",
    ),
    "skips for other layers": (
        lambda: SkipLSTM(3, 8, num_layers=3, skip=[F.Dynamic(5)] * 2, rngs=nnx.Rngs(0)),
        "disagree about the number of layers: skip for 2, num_layers for 3",
    ),
    "both directions reversed": (
        lambda: stack(bidirectional=True, reverse=True),
        "reverse is for one direction",
    ),
    "masks for one layer of two": (
        lambda: stack()(X, policy=F.Policy(mask=(ones(3, bool),)), rngs=KEY),
        "2 layers and directions need as many masks, got 1",
    ),
    "outputs in the place of decisions": (
        lambda: rl.agent_loss(output_of_a_layer().h, zeros(2)),
        r"expected the output of a layer of this library, or its .decisions \(DecisionTrace\), got float32",
    ),
    "greedy choices given to reinforce": (
        lambda: rl.reinforce(layer()(X, policy=GREEDY), zeros(2)),
        r"greedy choices have no REINFORCE gradient: call model.train\(\), or pass",
    ),
    "relaxed choices given to reinforce": (
        lambda: rl.reinforce(layer()(X, policy=F.Policy("soft")), zeros(2)),
        "soft choices are trained by the loss of the network: leave out rl.reinforce",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(name):
    attempt, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as error:
        attempt()
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


# Attempts that work.


def same(a, b, **tolerance):
    tolerance = tolerance or dict(rtol=1e-5, atol=1e-6)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, **tolerance)


@pytest.mark.slow
def test_evaluation_needs_no_key_chooses_greedily_and_drops_nothing():
    for module in (layer(), stack(dropout=0.5)):
        module.eval()
        same(module(X), module(X, policy=GREEDY))
    dropping = SkipLayers([cell(recurrent_dropout=0.5, weight_dropout=0.5, zoneout=0.0)])
    plain = layer()
    same(dropping(X, deterministic=True), plain(X, deterministic=True))
    dropping.eval()
    same(dropping(X), plain(X, deterministic=True))
    same(nnx.RNN(dropping.cells[0])(X), dropping(X).h)


def test_no_batch_axis_and_two():
    module, time_major_layer = layer(), layer(time_major=True)
    module.eval()
    time_major_layer.eval()
    read = compiled(module)
    whole = read(X, seq_lengths=LENGTHS)
    same(
        jax.tree.map(lambda leaf: np.asarray(leaf)[1], whole), read(np.asarray(X)[1], seq_lengths=np.int32(4))
    )
    lengths = np.asarray(LENGTHS)[None]
    both = read(np.asarray(X)[None], seq_lengths=lengths)
    assert both.h.shape == (1, 2, 6, 8)
    same(jax.tree.map(lambda leaf: np.asarray(leaf)[0], both), whole)
    time_major = compiled(time_major_layer)(np.moveaxis(np.asarray(X)[None], 2, 0), seq_lengths=lengths)
    same(np.moveaxis(np.asarray(time_major.h), 0, 2), both.h)


def test_segments_equal_the_whole():
    module = functools.partial(compiled(layer()), return_carry=True)
    start, x = (carry_of(),), np.asarray(X)
    carry, whole = module(x, initial_carry=start)
    middle, first = module(x[:, :3], initial_carry=start)
    end, second = module(x[:, 3:], initial_carry=middle)
    same(np.concatenate([first.h, second.h], axis=1), whole.h)
    same(end, carry)


@pytest.mark.slow
def test_packed_rows_equal_rows_of_their_own():
    for module in (layer(), stack(bidirectional=True)):
        module.eval()
        ids = jnp.array([[0, 0, 1, 1, 1, 1]] * 2)
        packed = module(X, segment_ids=ids).h
        same(packed[:, :2], module(X[:, :2]).h)
        same(packed[:, 2:], module(X[:, 2:]).h)


def actions(module, **options):
    return np.asarray(module(jnp.ones((8, 50, 3)), **options).decisions[0].action)


@pytest.mark.slow
def test_vmap_over_seeds_draws_apart():
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def make(rngs):
        return SkipLSTM(3, 8, skip=F.Dynamic(4), rngs=rngs, call_rngs=rngs)

    @nnx.vmap(in_axes=(0, None))
    def run(module, x):
        return module(x).decisions[0].action

    chosen = np.asarray(run(make(nnx.Rngs(0)), jnp.ones((8, 50, 3))))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert (chosen[i] == chosen[j]).mean() < 0.6


@pytest.mark.slow
def test_jit_remat_and_grad():
    module = layer()

    def loss(module, x):
        return jnp.sum(module(x, rngs=KEY).h ** 2)

    plain = nnx.grad(loss)(module, X)
    same(nnx.jit(nnx.grad(loss))(module, X), plain)
    same(nnx.grad(nnx.remat(loss))(module, X), plain)
    # Merging inside jax.grad under jit works with replayed actions: no RNG counter changes.
    graphdef, state = nnx.split(layer(call_rngs=nnx.Rngs(3)))
    replayed = jnp.ones((2, 6), int)

    @jax.jit
    def merged(state):
        return jax.grad(
            lambda state: jnp.sum(nnx.merge(graphdef, state)(X, actions=[replayed]).h), allow_int=True
        )(state)

    assert np.isfinite(merged(state)["cells"][0]["weights"]["w_h"][...]).all()


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
    module = layer()
    module.eval()
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), nnx.clone(module)):
        same(again(X), module(X))
    (carry,), out = module(X, return_carry=True)
    same(pickle.loads(pickle.dumps(out)), out)
    same(copy.deepcopy(carry.slots), carry.slots)


@pytest.mark.slow
def test_an_exported_program_takes_and_returns_carries():
    module = layer()
    module.eval()
    graphdef, state = nnx.split(module)
    carry = module.initialize_carry(2)

    def run(carry, x):
        return nnx.merge(graphdef, state)(x, initial_carry=carry, return_carry=True)

    program = export.export(jax.jit(run))(carry, X)
    again = export.deserialize(program.serialize())
    found = again.call(carry, X)
    assert isinstance(found[0][0], F.SkipCarry) and isinstance(found[1], F.LayersOutput)
    same(found, run(carry, X))


@pytest.mark.slow
def test_decisions_under_flaxs_rnn_count_where_the_trace_says():
    module = cell(return_decision=True)
    carry = carry_of()
    theirs = nnx.RNN(module)(X, initial_carry=carry, seq_lengths=LENGTHS).decision
    ours = SkipLayers([module])(X, initial_carry=[carry], seq_lengths=LENGTHS).decisions[0]
    assert not np.any(ours.log_prob[1, 4:]) and np.all(theirs.log_prob[1, 4:] < 0)
    trace = F.DecisionTrace.of(theirs, module.skip, F.length_mask(LENGTHS, 6))
    np.testing.assert_array_equal(trace.valid, ours.valid)
    assert (trace.mode, trace.reverse, trace.noncausal) == ("sample", False, False)


@pytest.mark.slow
def test_zoneout_under_flaxs_rnn_is_that_of_the_layer():
    module = SkipCell(3, 8, F.Previous(), zoneout=(0.2, 0.5), rngs=nnx.Rngs(0))
    carry = module.initialize_carry((2, 3), KEY)
    run = SkipLayers([module])
    same(nnx.RNN(module)(X, initial_carry=carry), run(X, initial_carry=[carry]).h)
    assert not np.allclose(run(X, rngs=KEY).h, run(X, deterministic=True).h)


def test_a_linear_layer_returns_the_wider_of_both_dtypes():
    module = Linear(3, 4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    for dtype in (jnp.bfloat16, jnp.float32):
        assert jax.eval_shape(module, jax.ShapeDtypeStruct((2, 3), dtype)).dtype == dtype


def test_a_misspelt_option_is_refused():
    for wrong in (dict(agent_feature=4), dict(cell=dict(agent_feature=4))):
        with pytest.raises(TypeError, match="unexpected keyword argument 'agent_feature'"):
            SkipLSTM(3, 8, rngs=nnx.Rngs(0), **wrong)


# Sampling when carries are passed from call to call.


def test_a_carry_made_in_evaluation_does_not_repeat_its_noise_in_training():
    """Regression: the carry's key was a constant, so all calls after `.train()` sampled the same choices."""
    module, x = layer(), np.ones((8, 20, 3), np.float32)
    module.eval()
    carry, _ = compiled(module)(x, return_carry=True)
    module.train()
    run = lambda key: np.asarray(compiled(module)(x, initial_carry=carry, rngs=key).decisions[0].action)
    np.testing.assert_array_equal(run(KEY), run(KEY))
    assert (run(KEY) == run(jax.random.key(2))).mean() < 0.6


def test_layers_of_different_k_have_masks_of_their_own():
    module = drawn(lambda: SkipLSTM(3, 8, skip=[F.Dynamic(5), F.Dynamic(3)], rngs=nnx.Rngs(0)))
    masks = (np.arange(5) == 3, np.arange(3) == 1)
    out = compiled(module)(np.asarray(X), policy=F.Policy("sample", mask=masks), rngs=KEY)
    assert [set(np.unique(trace.action)) for trace in out.decisions] == [{4}, {2}]


@pytest.mark.parametrize("kind", ["layers", "cell"])
def test_a_second_step_outside_of_jit_compiles_nothing(kind, caplog):
    module = layer()
    module.eval()
    carry = module.initialize_carry(2)
    if kind == "layers":
        step = lambda carry, t: module(X[:, t : t + 1], initial_carry=carry, return_carry=True)[0]
    else:
        step = lambda carry, t: (module.cells[0](carry[0], X[:, t])[0],)
    carry = step(step(carry, 0), 1)
    with jax.log_compiles():
        step(carry, 2)
    assert not [record for record in caplog.records if "ompiling" in record.getMessage()]


def test_what_an_output_holds_is_all_that_a_loss_needs():
    skips = [F.Dynamic(3), F.Previous()]
    module = drawn(lambda: SkipLSTM(3, 8, skip=skips, bidirectional=True, rngs=nnx.Rngs(0)))
    traces = compiled(module)(np.asarray(X), seq_lengths=LENGTHS, rngs=KEY).decisions
    facts = [(trace.mode, trace.reverse, trace.noncausal) for trace in traces]
    assert facts == [
        ("sample", False, True),
        ("sample", True, True),
        ("none", False, False),
        ("none", True, False),
    ]
    for trace in traces:
        np.testing.assert_array_equal(trace.valid, np.arange(6) < np.asarray(LENGTHS)[:, None])
