"""Check the fused unroll against a scan of the reference step, for all transitions and skips."""

import dataclasses
import itertools
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import on_device
from marks import and_slow
from recurrences import (
    BATCH,
    DEPTH_SKIPS,
    HIDDEN,
    INPUT,
    LENGTHS,
    OPTIONS,
    TIME,
    TIME_SKIPS,
    TRANSITIONS,
    assert_equal,
    assert_same,
    differentiated,
    everything,
    problem,
)

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.engine.deferred import activated
from dynskip_jax.functional.memory import Memory
from dynskip_jax.functional.product import activate, times_transposed

# The default cases contain each transition, time skip and depth skip at least once, and one
# transition without its output gate. The slow cases contain all pairs of two of the three.
SOME = [
    ("lstm", "attention", "none", False),
    ("lstm", "lstm-jump", "none", True),
    ("peephole", "fixed", "gates", True),
    ("full-gate", "previous", "gates-linear", False),
    ("plstm", "content", "internal", True),
    ("ulstm", "dynamic", "gated-internal", False),
    ("gru", "dynamic-content", "output", True),
    ("gru-before", "mean", "gated-output", False),
    ("rhn", "random", "gated-output-sigmoid", True),
    ("plstm-no-output-gate", "skip-rnn", "highway", False),
    ("slstm", "skip-rnn", "internal", True),
    ("min-lstm", "log-dynamic", "attention", False),
    ("min-gru", "segment-attention", "gates", True),
    ("ind-rnn", "log-attention", "dense", False),
    ("skim-lstm", "skim-rnn", "output", True),
    ("lstm", "segment-dynamic", "none", False),
]
# The skimming LSTM is left out: some of its weights have gradients only where tokens are skimmed.
PAIRS = [
    (transition, time_skip, list(DEPTH_SKIPS)[(i + j) % len(DEPTH_SKIPS)], (i + j) % 2 == 1)
    for (i, transition), (j, time_skip) in itertools.product(
        enumerate(TRANSITIONS), enumerate(TIME_SKIPS)
    )
    if transition != "skim-lstm"
]
CASES = dict.fromkeys(SOME + PAIRS)  # each once


@pytest.mark.parametrize(
    ("transition", "time_skip", "depth_skip", "reverse"),
    and_slow(CASES, lambda *case: case in SOME),
)
def test_outputs_and_gradients_equal_those_of_the_reference(
    double_precision, transition, time_skip, depth_skip, reverse
):
    """Values in the padding have no effect. Regression: NaN there made the gradients of all weights
    NaN.
    """
    recurrence = F.Recurrence(
        TIME_SKIPS[time_skip], TRANSITIONS[transition], DEPTH_SKIPS[depth_skip]
    )
    options = dict(seq_lengths=np.array(LENGTHS), reverse=reverse)
    ways = ("fused", "reference")
    function, arguments = differentiated(ways, recurrence, *problem(recurrence), **options)
    results = function(*arguments)
    params, ring, mask, x, below, *others = arguments
    padding = (np.arange(TIME)[None] >= np.array(LENGTHS)[:, None])[..., None]
    x = np.where(padding, np.nan, x)
    below = None if below is None else np.where(padding, np.inf, below)
    spoilt = function(params, ring, mask, x, below, *others)
    for (outputs, gradients), (clean, of_clean) in zip(spoilt, results, strict=True):
        jax.tree.map(np.testing.assert_array_equal, (outputs, gradients[0]), (clean, of_clean[0]))
    assert_equal(*results)
    _, gradients = results[0]
    for path, gradient in jax.tree.leaves_with_path(gradients[0]):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


@dataclasses.dataclass(frozen=True)
class Doubling(F.TimeSkip):
    """A time skip that always chooses State(t-2), and doubles a number of its own at each step."""

    name: ClassVar[str] = "doubling"
    max_skip: int = 2

    def init_skip_state(self, batch, dtype):
        return jnp.ones(batch, dtype)

    def differentiable(self, mode, replayed):
        return False

    def choose(self, params, inputs, observation, skip_state, mode):
        return F.Choice(slot=jnp.ones(inputs.step.shape, jnp.int32)), 2 * skip_state


@pytest.mark.parametrize("lengths", [None, (TIME, 0, 1)])
def test_no_gradient_flows_through_the_state_of_choices_without_a_derivative(
    double_precision, lengths
):
    recurrence = F.Recurrence(Doubling())
    params, carry, x, _ = problem(recurrence)

    def last(skip_state, implementation):
        start = carry._replace(skip_state=skip_state)
        options = dict(seq_lengths=None if lengths is None else jnp.array(lengths))
        end, _ = F.unroll(params, start, x, recurrence, implementation=implementation, **options)
        return end.skip_state.sum()

    gradient = jax.jit(jax.grad(last), static_argnums=1)
    found = [gradient(carry.skip_state, way) for way in ("fused", "reference")]
    np.testing.assert_array_equal(*found)
    # A sequence without steps keeps its number, which has a gradient.
    np.testing.assert_array_equal(found[0], [0, 0 if lengths is None else 1, 0])


class Counted(NamedTuple):
    count: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class CountedWeights(F.TimeSkip):
    """A time skip that weighs the last K states by a query from the inputs, a carried level and a
    count.
    """

    observation_kind: ClassVar[str] = "slots"

    def init(self, key, in_features, hidden, agent_features, init):
        return init.draw(init.kernel, key, (in_features, hidden))

    def init_skip_state(self, batch, dtype):
        return Counted(jnp.zeros(batch, jnp.int32), jnp.zeros(batch, dtype))

    def project(self, params, x):
        return F.product(x, params)

    def choose(self, params, inputs, observation, skip_state, mode):
        odd = (skip_state.count % 2).astype(observation.dtype)
        query = inputs.projected + (skip_state.level + odd)[..., None]
        scores = jnp.einsum("...kh,...h->...k", observation, query)
        return F.Choice(weights=jax.nn.softmax(scores)), Counted(
            skip_state.count + 1, skip_state.level / 2 + scores[..., 0]
        )


@dataclasses.dataclass(frozen=True)
class SeesCell(F.Dynamic):
    """A dynamic skip whose agent sees c as well as h: s(t) = h(t-1) ⊕ c(t-1) ⊕ x(t)."""

    name: ClassVar[str] = "sees_cell"

    def observation_arrays(self, transition):
        return "h", transition.cell_state

    def init(self, key, in_features, hidden, units, init):
        return super().init(key, in_features, 2 * hidden, units, init)


@dataclasses.dataclass(frozen=True)
class Surprise(F.TimeSkip):
    """A skip that reads a token as far as the last K states differ; State(t-1) enters."""

    observation_kind: ClassVar[str] = "slots"
    fixed_slot: ClassVar[int] = 0
    writes_all: ClassVar[bool] = False

    def choose(self, params, inputs, observation, skip_state, mode):
        return F.Choice(update=jax.nn.sigmoid(observation.var(axis=(-2, -1)) - 0.5)), skip_state


# Layers of which only a part is in the cases above, and more arguments of `assert_same`.
SHORT = dict(seq_lengths=np.array((7, 2, 5)))
SAME = {name: (F.Recurrence(skip), SHORT) for name, skip in OPTIONS.items()}
# No state but State(t-1) enters, and more are observed: the fused unroll once kept only the former.
SAME["an update by all slots"] = F.Recurrence(Surprise(3)), SHORT
SAME["whole numbers in the carry"] = F.Recurrence(CountedWeights(3, 0.5)), SHORT
for mode, seen in itertools.product(("sample", "soft"), ("previous", "mean")):
    options = SHORT | dict(policy=F.Policy(mode))
    SAME[f"sees c, {mode}, {seen}"] = F.Recurrence(SeesCell(3, 0.5, agent_input=seen)), options
# c, of which not all K rows are returned, once got the gradient of its oldest row only.
for skip, time in itertools.product((F.Dynamic(5, 0.0), F.Previous(5)), (3, TIME)):
    options = dict(policy=F.Policy("greedy"), return_cell_state=False, time=time)
    SAME[f"carry after {time} steps of {type(skip).__name__}"] = F.Recurrence(skip), options
# Sequences that begin inside a row start from the initial state, whatever the skip reads and keeps.
IDS = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 2, 2, 3, 3], [5, 5, 5, 5, 5, 5, 6]])
STARTS = np.diff(IDS, axis=1, prepend=IDS[:, :1] - [[0], [1], [0]]) != 0  # one does not go on
for name, skip in TIME_SKIPS.items():
    transition, rng = (
        TRANSITIONS["slstm" if name == "content" else "lstm"],
        np.random.default_rng(1),
    )
    initial = transition.state(
        *(rng.normal(size=(BATCH, HIDDEN)) for _ in transition.state._fields)
    )
    options = dict(resets=STARTS, initial=initial, seq_lengths=np.array([7, 6, 0]))
    SAME[f"packed {name}"] = F.Recurrence(skip, transition), options
for name, skip, *rates in (
    ("lstm", "dynamic", 0.3, 0.6),
    ("gru", "previous", 0.5),
    ("rhn", "skip-rnn", 0.5),
):
    kept = tuple((rng.random((BATCH, TIME, HIDDEN)) < rate).astype(float) for rate in rates)
    options = dict(zoneout_mask=kept, seq_lengths=np.array((TIME, 0, 1)))
    SAME[f"zoneout of {name}"] = F.Recurrence(TIME_SKIPS[skip], TRANSITIONS[name]), options
# A traced temperature once had a gradient of 0, because the loop treated it as a constant.
RELAXED = [("soft", f"{name} masked") for name in ("dynamic", "log")] + [
    ("gumbel_softmax", "released")
]
RELAXED += [("soft", f"{name} by content") for name in ("dynamic", "nothing moved,")]
RELAXED += [("gumbel_softmax", "nothing moved"), ("reinmax", "dynamic mean")]
RELAXED += [("straight_through", name) for name in ("segments carried", "dynamic masked")]
for mode, name in RELAXED:
    policy = F.Policy(mode, temperature=np.array(0.7), mask=np.arange(OPTIONS[name].max_skip) != 2)
    SAME[f"{mode} {name}"] = F.Recurrence(OPTIONS[name]), SHORT | dict(policy=policy)
# Recurrent dropout, a step count above 0, a traced λ and replayed actions.
DROPPED = [("lstm", "dynamic"), ("gru", "dynamic"), ("rhn", "previous")]
DROPPED += [(name, "attention") for name in ("gru-before", "full-gate")]
for name, skip in DROPPED:
    recurrence = F.Recurrence(TIME_SKIPS[skip], TRANSITIONS[name], F.ToOutput(gated=True))
    options = SHORT | dict(steps=2, recurrent_mask=2.0 * rng.integers(2, size=(BATCH, HIDDEN)))
    options["policy"] = F.Policy(mix=np.array(0.3) if skip != "previous" else None)
    options["actions"] = rng.integers(1, 4, size=(BATCH, TIME)) if skip == "dynamic" else None
    SAME[f"dropped {name}"] = recurrence, options
USUAL = {"dropped lstm", "gumbel_softmax released"}
USUAL |= {"content carried", "carry after 3 steps of Dynamic", "packed content"}
USUAL |= {"sees c, soft, mean"}


@pytest.mark.parametrize("name", and_slow(SAME, USUAL.__contains__))
def test_other_layers_and_options_too(double_precision, name):
    recurrence, options = SAME[name][0], dict(SAME[name][1])
    params, carry, x, below = problem(recurrence, steps=options.pop("steps", 0))
    carry = carry._replace(recurrent_mask=on_device(options.pop("recurrent_mask", None)))
    x = x[:, : options.pop("time", TIME)]
    assert_same(recurrence, params, carry, x, below, **options)


@pytest.mark.parametrize(
    ("transition", "depth_skip", "lengths", "reverse"),
    [("min-lstm", None, None, False), ("min-gru", F.ToGates(), (TIME, 0, 2), True)],
    ids=str,
)
def test_a_parallel_scan_equals_the_reference(
    double_precision, transition, depth_skip, lengths, reverse
):
    recurrence = F.Recurrence(F.Previous(3), TRANSITIONS[transition], depth_skip)
    lengths = None if lengths is None else np.array(lengths)
    options = dict(seq_lengths=lengths, reverse=reverse)
    ways = ("parallel", "reference")
    assert_equal(*everything(ways, recurrence, *problem(recurrence), **options))
    params, carry, x, below = problem(recurrence)
    settings = dict(below=below, implementation="parallel")
    program = jax.make_jaxpr(lambda x: F.unroll(params, carry, x, recurrence, **settings)[1].h)(x)
    assert "scan[" not in str(program)
    squashed = type("Squashed", (type(recurrence.transition),), {"step": F.LSTM.step})()
    for other in (dict(time_skip=F.Fixed(3)), dict(transition=squashed)):
        with pytest.raises(UserError, match="for minLSTM and minGRU without skips over time"):
            F.unroll(params, carry, x, dataclasses.replace(recurrence, **other), **settings)


def test_states_before_each_step_are_compared_in_blocks_and_averaged(double_precision):
    rng = np.random.default_rng(0)
    for K, time in ((1, 30), (2, 30), (5, 129), (70, 300), (200, 30)):
        query, rows = rng.normal(size=(2, time, 4)), rng.normal(size=(2, K + time - 1, 4))
        windows = np.stack([rows[:, K - k : K - k + time] for k in range(1, K + 1)], axis=2)

        @jax.jit
        def both(rows, query, K=K):
            memory = Memory(rows, K, has_time=True)
            return memory.compare(query), memory.mean

        compared, mean = both(rows, query)
        np.testing.assert_allclose(compared, np.einsum("bth,btkh->btk", query, windows), atol=1e-12)
        np.testing.assert_allclose(mean, windows.mean(axis=2), atol=1e-13)
        narrow = both(rows.astype(np.float32), query)[1]
        np.testing.assert_allclose(narrow, windows.mean(axis=2), atol=1e-6)


def test_memory_of_choices_by_content_grows_as_time():
    def needed(time):
        compare = jax.jit(lambda rows, query: Memory(rows, 5, has_time=True).compare(query))
        program = compare.lower(np.zeros((2, time + 4, 8)), np.zeros((2, time, 8))).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert needed(8000) < 3 * needed(4000)


def test_an_agent_that_sees_the_mean_keeps_nothing_for_each_of_k():
    """Regression: the program stored all K states of all steps at once, 86 MiB instead of 13
    MiB.
    """
    batch, time, hidden = 4, 200, 64

    def needed(K):
        recurrence = F.Recurrence(F.Dynamic(K, 0.5, agent_input="mean"))

        def loss(params, x):
            zeros = F.zero_state(recurrence.transition, (batch, hidden))
            carry = F.initial_carry(jax.random.key(0), recurrence, zeros)
            out = F.unroll(params, carry, x, recurrence)[1]
            return jnp.sum(out.h) + jnp.sum(out.decision.log_prob)

        x = jax.ShapeDtypeStruct((batch, time, INPUT), jnp.float32)
        params = jax.eval_shape(
            partial(recurrence.init, in_features=INPUT, hidden=hidden), jax.random.key(0)
        )
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    of_all = batch * time * 64 * hidden * 4
    assert needed(64) - needed(1) < of_all / 4


@pytest.mark.parametrize("name", ["skip-rnn", pytest.param("attention", marks=pytest.mark.slow)])
def test_second_derivatives(double_precision, name):
    """Hessian-vector products in both ways, forward and reverse over reverse mode, equal the
    reference's.
    """
    recurrence = F.Recurrence(TIME_SKIPS[name], F.GRU())
    params, carry, x, _ = problem(recurrence)
    direction = np.random.default_rng(1).normal(size=x.shape)

    def loss(x, implementation):
        out = F.unroll(params, carry, x, recurrence, implementation=implementation)[1]
        return jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob)

    def product(x, direction, implementation):
        return jax.jvp(lambda x: jax.grad(loss)(x, implementation), (x,), (direction,))[1]

    found = [
        jax.jit(product, static_argnums=2)(x, direction, name) for name in ("fused", "reference")
    ]
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-10)
    if name == "attention":  # one of the slow cases
        twice = jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x, "fused"), direction))
        np.testing.assert_allclose(jax.jit(twice)(x), found[1], rtol=1e-8, atol=1e-10)


def test_the_ways_to_multiply_by_the_transpose_are_one():
    """Each size selects another method of `times_transposed`; all of them equal NumPy's product."""
    rng = np.random.default_rng(0)
    for rows, hidden in ((3, 8), (40, 128), (40, 256)):
        w, d = (rng.normal(size=(n, 4 * hidden)).astype(np.float32) for n in (hidden, rows))
        found = jax.jit(lambda w, d, rows=rows: times_transposed(w, rows)(d))(w, d)
        np.testing.assert_allclose(found, d @ w.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["dynamic-content"])
def test_a_program_does_not_grow_with_k(name):
    def size(K):
        skip = TIME_SKIPS[name]
        recurrence = F.Recurrence(type(skip)(K, 0.5, agent=skip.agent))
        params, carry, x, _ = problem(recurrence, jnp.float32)

        def loss(params, x):
            out = F.unroll(params, carry, x, recurrence)[1]
            return jnp.sum(out.h) + jnp.sum(out.decision.log_prob)

        program = jax.jit(jax.grad(loss)).lower(params, x).as_text()
        return sum(" = " in line for line in program.splitlines())

    assert size(50) <= 1.1 * size(5)


class Careless(F.LSTM):
    def step(self, params, inputs, state, dense, cell_hook=None):
        return state._replace(h=state.h @ params.w_h)


def test_matrices_are_multiplied_through_dense_alone():
    recurrence = F.Recurrence(transition=Careless())
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match="through `dense`"):
        F.unroll(params, carry, x, recurrence)


def test_a_skip_over_depth_that_has_nowhere_to_go_or_to_come_from_is_refused():
    class Closed(F.LSTM):
        def step(self, params, inputs, state, dense, cell_hook=None):
            return super().step(params, inputs, state, dense)

    recurrence = F.Recurrence(transition=Closed(), depth_skip=F.ToInternal())
    params, carry, x, below = problem(recurrence, jnp.float32)
    for implementation in ("fused", "reference"):
        with pytest.raises(UserError, match="Closed calls no cell_hook"):
            F.unroll(params, carry, x, recurrence, below=below, implementation=implementation)
    with pytest.raises(UserError, match="needs what comes from below"):
        F.unroll(params, carry, x, recurrence)
    with pytest.raises(UserError, match=f"from a layer of size 2 to one of size {HIDDEN}"):
        F.unroll(params, carry, x, recurrence, below=below[..., :2])


@dataclasses.dataclass(frozen=True)
class Growing(F.IndRNN):
    """Overflows within the padding, where a step from the last state would go on."""

    name: ClassVar[str] = "growing"

    def step(self, params, inputs, state, dense, cell_hook=lambda cell: cell):
        new = super().step(params, inputs, state, dense, cell_hook)
        return new._replace(h=jnp.where(new.h > 0, new.h * 1e30, new.h))


GROWS = [F.Previous(), F.Attention(3, 0.5, agent="content")]


@pytest.mark.parametrize("skip", GROWS, ids=str)
def test_padding_of_a_state_that_grows_leaves_gradients_finite(double_precision, skip):
    """A step past the end would overflow, and 0 times infinity is NaN: the state is held
    instead.
    """
    recurrence = F.Recurrence(skip, Growing())
    params, carry, x, below = problem(recurrence)
    long = np.tile(np.asarray(x), (1, 20, 1))
    assert_same(recurrence, params, carry, long, below, seq_lengths=np.array([2, 1, 2]))


# --- Narrow dtypes


def test_small_sigmoids_are_not_rounded_to_zero_in_bfloat16():
    x = jnp.linspace(-12, 12, 49, dtype=jnp.bfloat16).reshape(1, -1)
    for activations in (("sigmoid",), ("tanh",)):
        found = activated(x, activations).astype(np.float32)
        expected = activate(x.astype(jnp.float32), activations)
        np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_gates_that_are_almost_closed_have_a_slope_in_bfloat16(implementation):
    """With a bias of -8 the input gate and its derivative are about 3e-4."""
    recurrence = F.Recurrence()
    params, carry, x, _ = problem(recurrence, jnp.bfloat16)
    small = jax.tree.map(lambda w: 0.1 * w, params.transition)
    params = params._replace(transition=small._replace(b=small.b.at[HIDDEN : 2 * HIDDEN].set(-8)))

    def loss(params):
        out = F.unroll(params, carry, x, recurrence, implementation=implementation)[1]
        return jnp.sum(out.h.astype(jnp.float32) ** 2)

    slopes = jax.jit(jax.grad(loss))(params).transition.b[HIDDEN : 2 * HIDDEN]
    assert (slopes.astype(np.float32) != 0).all()


def test_parameters_narrower_than_the_state_are_the_same_in_both(double_precision):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    params = problem(recurrence, jnp.float32)[0]
    (end, _), _ = assert_same(recurrence, params, *problem(recurrence)[1:], rtol=2e-4)
    assert {leaf.dtype for leaf in end.slots} == {jnp.dtype(jnp.float64)}
