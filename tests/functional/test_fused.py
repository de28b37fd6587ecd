"""Check the fused unroll against a scan of the reference step, for all transitions and skips."""

import dataclasses
import itertools
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, on_device, unroll
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
from dynskip_jax.functional.history import Window
from dynskip_jax.functional.product import times_transposed

# The default cases contain each transition, time skip and depth skip at least once, and one transition
# without its output gate. The slow cases are a third of all combinations, with each pair at least 3 times.
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
MAIN = [name for name in TRANSITIONS if "no-output-gate" not in name and name != "skim-lstm"]
REST = [
    (transition, time_skip, depth_skip, (i + j + k) % 2 == 1)
    for (i, transition), (j, time_skip), (k, depth_skip) in itertools.product(
        enumerate(MAIN), enumerate(TIME_SKIPS), enumerate(DEPTH_SKIPS)
    )
    if (i + j + k) % 3 == 0 and (transition, time_skip, depth_skip) not in [case[:3] for case in SOME]
]
REST += [
    (name, "dynamic", list(DEPTH_SKIPS)[i], i % 2 == 1)
    for i, name in enumerate(name for name in TRANSITIONS if "no-output-gate" in name)
]


@pytest.mark.parametrize(
    ("transition", "time_skip", "depth_skip", "reverse"),
    and_slow(SOME + REST, lambda *case: case in SOME),
)
def test_outputs_and_gradients_equal_those_of_the_reference(
    double_precision, transition, time_skip, depth_skip, reverse
):
    """Values in the padding have no effect. Regression: NaN there made the gradients of all weights NaN."""
    recurrence = F.Recurrence(TIME_SKIPS[time_skip], TRANSITIONS[transition], DEPTH_SKIPS[depth_skip])
    options = dict(seq_lengths=np.array(LENGTHS), reverse=reverse)
    results = []
    for implementation in ("fused", "reference"):
        function, arguments = differentiated(implementation, recurrence, *problem(recurrence), **options)
        results.append(function(*arguments))
        params, slots, mask, x, below, *others = arguments
        padding = (np.arange(TIME)[None] >= np.array(LENGTHS)[:, None])[..., None]
        spoilt = np.where(padding, np.nan, x), None if below is None else np.where(padding, np.inf, below)
        outputs, gradients = function(params, slots, mask, *spoilt, *others)
        clean, of_clean = results[-1]
        jax.tree.map(np.testing.assert_array_equal, (outputs, gradients[0]), (clean, of_clean[0]))
    assert_equal(*results)
    _, gradients = results[0]
    for path, gradient in jax.tree.leaves_with_path(gradients[0]):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "name",
    and_slow(OPTIONS, {"content carried"}.__contains__),
)
def test_the_options_of_time_skips(double_precision, name):
    recurrence = F.Recurrence(OPTIONS[name])
    assert_same(recurrence, *problem(recurrence), seq_lengths=np.array((7, 2, 5)))


@pytest.mark.parametrize(
    ("transition", "depth_skip", "lengths", "reverse"),
    [("min-lstm", None, None, False), ("min-gru", F.ToGates(), (TIME, 0, 2), True)],
    ids=str,
)
def test_a_parallel_scan_equals_the_reference(double_precision, transition, depth_skip, lengths, reverse):
    recurrence = F.Recurrence(F.Previous(3), TRANSITIONS[transition], depth_skip)
    lengths = None if lengths is None else np.array(lengths)
    options = dict(seq_lengths=lengths, reverse=reverse)
    ways = ("parallel", "reference")
    assert_equal(*(everything(way, recurrence, *problem(recurrence), **options) for way in ways))
    params, carry, x, below = problem(recurrence)
    settings = dict(below=below, implementation="parallel")
    program = jax.make_jaxpr(lambda x: F.unroll(params, carry, x, recurrence, **settings)[1].h)(x)
    assert "scan[" not in str(program)
    with pytest.raises(UserError, match="for minLSTM and minGRU without skips over time"):
        other = dataclasses.replace(recurrence, time_skip=F.Fixed(3))
        F.unroll(params, carry, x, other, **settings)


@pytest.mark.parametrize(
    ("skip", "length"),
    and_slow(
        [(skip, length) for skip in (F.Dynamic(5, 0.0), F.Previous(5)) for length in (3, TIME)],
        lambda skip, length: (skip.name, length) == ("dynamic", 3),
    ),
    ids=str,
)
def test_gradients_of_the_last_carry_where_nothing_is_moved(double_precision, skip, length):
    """Regression: c, of which not all K rows are returned, got the gradient of its oldest row only."""
    recurrence = F.Recurrence(skip)
    params, carry, x, below = problem(recurrence)
    policy = F.Policy("greedy")
    assert_same(recurrence, params, carry, x[:, :length], below, policy=policy, return_cell_state=False)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_wider_inputs_and_numbers_leave_a_narrow_state_as_it_is(implementation):
    recurrence = F.Recurrence(F.Dynamic(3), F.LSTM(), F.ToOutput(gated=True))
    params, carry, x, below = problem(recurrence, jnp.bfloat16)

    def run(dtype, **policy):
        options = dict(below=below.astype(dtype), policy=F.Policy("soft", **policy))
        return unroll(params, carry, x.astype(dtype), recurrence, implementation=implementation, **options)

    end, out = run(jnp.float32, mix=jnp.float32(0.5), temperature=jnp.float32(0.7))
    assert {leaf.dtype for leaf in (out.h, *end.slots)} == {jnp.dtype(jnp.bfloat16)}
    expected = run(jnp.bfloat16, mix=0.5, temperature=0.7)[1].h
    np.testing.assert_allclose(out.h.astype(np.float32), expected.astype(np.float32), atol=0.05)


def test_queries_meet_the_states_before_them_in_blocks_too(double_precision):
    rng = np.random.default_rng(0)
    for K, time in ((5, 129), (70, 300)):
        query, rows = rng.normal(size=(2, time, 4)), rng.normal(size=(2, K + time - 1, 4))
        found = jax.jit(lambda rows, query, K=K: Window(rows, K, has_time=True).compare(query))(rows, query)
        windows = np.stack([rows[:, K - k : K - k + time] for k in range(1, K + 1)], axis=2)
        np.testing.assert_allclose(found, np.einsum("bth,btkh->btk", query, windows), atol=1e-12)


def test_memory_of_choices_by_content_grows_as_time():
    def needed(time):
        compare = jax.jit(lambda rows, query: Window(rows, 5, has_time=True).compare(query))
        program = compare.lower(np.zeros((2, time + 4, 8)), np.zeros((2, time, 8))).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert needed(8000) < 3 * needed(4000)


def test_means_of_the_states_before_each_step(double_precision):
    rng = np.random.default_rng(0)
    for K in (1, 2, 5, 200):
        rows = rng.normal(size=(2, K + 29, 4))
        expected = np.stack([rows[:, t : t + K].mean(axis=1) for t in range(30)], axis=1)
        found = jax.jit(lambda rows, K=K: Window(rows, K, has_time=True).mean)(rows)
        np.testing.assert_allclose(found, expected, atol=1e-14)
        narrow = jax.jit(lambda rows, K=K: Window(rows, K, has_time=True).mean)(rows.astype(np.float32))
        np.testing.assert_allclose(narrow, expected, atol=1e-6)


@pytest.mark.parametrize("skip", and_slow([F.Dynamic, F.Attention], lambda skip: skip is F.Dynamic))
def test_an_agent_that_sees_the_mean_keeps_nothing_for_each_of_k(skip):
    """Regression: the program stored all K states of all steps at once, 86 MiB instead of 13 MiB."""
    batch, time, hidden = 4, 200, 64

    def needed(K):
        recurrence = F.Recurrence(skip(K, 0.5, agent_input="mean"))

        def loss(params, x):
            zeros = F.zero_state(recurrence.transition, (batch, hidden))
            carry = F.initial_carry(jax.random.key(0), recurrence, zeros)
            out = F.unroll(params, carry, x, recurrence)[1]
            return jnp.sum(out.h) + jnp.sum(out.decision.log_prob)

        x = jax.ShapeDtypeStruct((batch, time, INPUT), jnp.float32)
        params = jax.eval_shape(partial(recurrence.init, in_features=INPUT, hidden=hidden), jax.random.key(0))
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    of_all = batch * time * 64 * hidden * 4
    assert needed(64) - needed(1) < of_all / 4


@pytest.mark.parametrize("name", and_slow(list(TIME_SKIPS), {"skip-rnn"}.__contains__))
def test_second_derivatives(double_precision, name):
    """Hessian-vector products in both ways, forward and reverse over reverse mode, equal the reference's."""
    recurrence = F.Recurrence(TIME_SKIPS[name], F.GRU())
    params, carry, x, _ = problem(recurrence)
    direction = np.random.default_rng(1).normal(size=x.shape)

    def loss(x, implementation):
        out = F.unroll(params, carry, x, recurrence, implementation=implementation)[1]
        return jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob)

    def product(x, direction, implementation):
        return jax.jvp(lambda x: jax.grad(loss)(x, implementation), (x,), (direction,))[1]

    found = [jax.jit(product, static_argnums=2)(x, direction, name) for name in ("fused", "reference")]
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-10)
    if name == "attention":  # one of the slow cases
        twice = jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x, "fused"), direction))
        np.testing.assert_allclose(jax.jit(twice)(x), found[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "mode"),
    and_slow(
        [
            ("dynamic masked", "soft"),
            ("dynamic by content", "soft"),
            ("log masked", "soft"),
            ("segments carried", "straight_through"),
            ("nothing moved, by content", "soft"),
            ("nothing moved", "gumbel_softmax"),
            ("released", "gumbel_softmax"),
            ("dynamic masked", "straight_through"),
            ("dynamic mean", "reinmax"),
        ],
        lambda *case: case == ("released", "gumbel_softmax"),
    ),
)
def test_relaxed_choices_too(double_precision, name, mode):
    """Regression: a traced temperature had a gradient of 0, because the loop treated it as a constant."""
    recurrence = F.Recurrence(OPTIONS[name])
    allowed = np.array([True] * (OPTIONS[name].max_skip - 1) + [False])
    policy = F.Policy(mode, temperature=jax.device_put(0.7), mask=allowed)
    _, gradients = assert_same(
        recurrence, *problem(recurrence), seq_lengths=np.array((7, 2, 5)), policy=policy
    )
    # The temperature has a gradient if relaxed weights enter a state. ReinMax treats it as a constant.
    reaches = OPTIONS[name].mix > 0 and mode != "reinmax"
    assert (abs(float(gradients[-1].temperature)) > 1e-3) == reaches


@pytest.mark.parametrize(
    ("transition", "name"),
    and_slow(
        [
            ("lstm", "dynamic"),
            ("gru-before", "attention"),
            ("rhn", "previous"),
            ("full-gate", "attention"),
            ("gru", "dynamic"),
        ],
        lambda transition, name: transition == "lstm",
    ),
)
def test_the_options_of_the_unroll(double_precision, name, transition):
    """Both unrolls agree with recurrent dropout, a step count above 0, a traced λ and replayed actions."""
    skip = TIME_SKIPS[name]
    recurrence = F.Recurrence(skip, TRANSITIONS[transition], F.ToOutput(gated=True))
    params, carry, x, below = problem(recurrence, steps=2)
    rng = np.random.default_rng(3)
    dropped = carry._replace(recurrent_mask=jax.device_put(2.0 * rng.integers(2, size=(BATCH, HIDDEN))))
    policy = F.Policy(mix=jax.device_put(0.3) if skip.fixed_slot is None else None)
    actions = rng.integers(1, skip.max_skip + 1, size=(BATCH, TIME)) if skip.is_stochastic else None
    options = dict(actions=actions, seq_lengths=np.array((7, 2, 5)))
    assert_same(recurrence, params, dropped, x, below, policy, **options)


class Counted(NamedTuple):
    count: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class CountedWeights(F.TimeSkip):
    """A time skip that weighs the last K states by a query from the inputs, a carried level and a count."""

    observed: ClassVar[str] = "slots"

    def differentiable(self, mode, replayed):
        return True

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


def test_a_skip_that_carries_whole_numbers_beside_what_it_learns(double_precision):
    """Regression: the backward loop over time failed, because integers have no adjoint."""
    recurrence = F.Recurrence(CountedWeights(3, 0.5))
    (end, _), gradients = assert_same(recurrence, *problem(recurrence), seq_lengths=np.array(LENGTHS))
    np.testing.assert_array_equal(end.skip_state.count, LENGTHS)
    assert np.abs(gradients[0].skip).max() > 0


def test_policy_masks_of_each_example(double_precision):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    allowed = np.ones((BATCH, 3), bool)
    allowed[0, 1] = allowed[2, :2] = False
    policy = F.Policy(mask=jax.device_put(allowed))
    params, carry, x, _ = problem(recurrence, steps=2)
    results = [
        unroll(params, carry, x, recurrence, policy=policy, implementation=implementation)[1]
        for implementation in ("fused", "reference")
    ]
    assert_equal(*results)
    chosen = np.asarray(results[0].decision.action) - 1
    assert np.take_along_axis(allowed, chosen, axis=1).all()


@pytest.mark.parametrize("name", ["attention", "dynamic", "skip-rnn"])
@pytest.mark.slow
def test_mapped_over_seeds_and_mixes_it_is_the_same(double_precision, name):
    recurrence = F.Recurrence(TIME_SKIPS[name])
    problems = [problem(recurrence, seed=seed)[:3] for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    mixes = jnp.array([0.1, 0.5, 1.0])

    def gradient(problem, mix):
        params, carry, x = problem

        def loss(params, x):
            end, out = F.unroll(params, carry, x, recurrence, policy=F.Policy(mix=mix))
            return jnp.sum(out.h**2) + jnp.sum(out.decision.log_prob) + jnp.sum(end.slots.c)

        return jax.grad(loss, argnums=(0, 1))(params, x)

    together = jax.jit(jax.vmap(gradient))(stacked, mixes)
    for i, (one, mix) in enumerate(zip(problems, mixes, strict=True)):
        alone = gradient(one, mix)
        cut = jax.tree.map(lambda a, i=i: a[i], together)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10), cut, alone)


def test_the_ways_to_multiply_by_the_transpose_are_one():
    """Each size selects another method of `times_transposed`; all of them equal NumPy's product."""
    rng = np.random.default_rng(0)
    for rows, hidden in ((3, 8), (40, 128), (40, 256)):
        w, d = (rng.normal(size=(n, 4 * hidden)).astype(np.float32) for n in (hidden, rows))
        found = jax.jit(lambda w, d, rows=rows: times_transposed(w, rows)(d))(w, d)
        np.testing.assert_allclose(found, d @ w.T, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_gradients_reach_what_was_carried_from_the_segment_before(double_precision):
    """The gradient through two consecutive segments equals that of one long sequence."""
    for name in ("previous", "attention", "dynamic", "skip-rnn", "lstm-jump"):
        recurrence = F.Recurrence(TIME_SKIPS[name])
        params, carry, x, _ = problem(recurrence)

        def loss(params, x, cut, recurrence=recurrence, carry=carry):
            end, outputs = carry, []
            for part in jnp.split(x, [cut], axis=1) if cut else [x]:
                end, out = F.unroll(params, end, part, recurrence)
                outputs.append(out.h)
            return jnp.sum(jnp.sin(jnp.concatenate(outputs, axis=1)))

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
        whole, halves = gradient(params, x, 0), gradient(params, x, 4)
        for a, b in zip(jax.tree.leaves(halves), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_no_steps_at_all_change_nothing(double_precision):
    for name in ("dynamic", "skip-rnn"):
        recurrence = F.Recurrence(TIME_SKIPS[name])
        params, carry, x, _ = problem(recurrence)
        segments = np.zeros((BATCH, 0), int) if name == "skip-rnn" else None
        end, out = unroll(params, carry, np.asarray(x)[:, :0], recurrence, segment_ids=segments)
        assert out.h.shape == (BATCH, 0, HIDDEN) and out.decision.action.shape == (BATCH, 0)
        for a, b in zip(jax.tree.leaves(end.slots), jax.tree.leaves(carry.slots), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(end.step, 0)
    for pooling in ("last", "mean", "max"):
        pooled = compiled(F.pool_states)(out.h, np.zeros((BATCH, 0), bool), pooling)
        np.testing.assert_array_equal(pooled, np.zeros((BATCH, HIDDEN)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(implementation="quick"), "unknown implementation 'quick': choose auto or fused or"),
        (dict(policy=F.Policy(mix=1.5)), "mix .* between 0 and 1, got 1.5"),
        (dict(seq_lengths=np.array([7, 8, 1])), "seq_lengths lie between 0 and 7, got 1 to 8"),
        (dict(actions=np.full((BATCH, TIME), 4)), "actions lie between 1 and 3, got 4 to 4"),
        (dict(actions=np.zeros((BATCH, TIME), int)), "actions lie between 1 and 3, got 0 to 0"),
        (dict(below=np.zeros((BATCH, TIME, HIDDEN))), "no skip over depth: leave out below"),
        (dict(policy=F.Policy(mask=[True, False, True])), "a policy's mask is an array"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(options, message):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match=message):
        F.unroll(params, carry, x, recurrence, **on_device(options))


def test_traced_lengths_and_actions_beyond_their_range_count_as_its_ends(double_precision):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    params, carry, x, _ = problem(recurrence)
    actions = np.random.default_rng(4).integers(1, 4, (BATCH, TIME))

    def run(lengths, actions, implementation):
        settings = dict(seq_lengths=lengths, actions=actions, implementation=implementation)
        return F.unroll(params, carry, x, recurrence, **settings)[1]

    for implementation in ("fused", "reference"):
        program = jax.jit(run, static_argnums=2)
        beyond = program(np.array([9, -2, 7]), np.where(actions == 3, 8, actions), implementation)
        within = program(np.array([7, 0, 7]), actions, implementation)
        jax.tree.map(np.testing.assert_array_equal, beyond, within)


def test_the_first_action_is_the_one_that_was_taken():
    """Even when logits differ by 1e-8 only, the state that enters is that of the reported action."""
    recurrence = F.Recurrence(F.Dynamic(3, 1.0))
    params, carry, x, _ = problem(recurrence, jnp.float32)
    agent = params.skip._replace(w_out=jnp.zeros_like(params.skip.w_out), b_out=jnp.array([0.0, 1e-8, -1e-8]))
    params = params._replace(skip=agent)
    _, sampled = unroll(params, carry, x, recurrence)
    _, replayed = unroll(params, carry, x, recurrence, actions=sampled.decision.action)
    np.testing.assert_array_equal(sampled.h, replayed.h)


@pytest.mark.parametrize(
    "name", and_slow(["attention", "content", "dynamic", "dynamic-content"], "dynamic-content".__eq__)
)
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


class Inputs(NamedTuple):
    gates: jax.Array
    more: jax.Array


class Greedy(F.LSTM):
    def project(self, params, x):
        return Inputs(super().project(params, x), super().project(params, x))

    def step(self, params, inputs, state, dense, cell_hook=None):
        adds_both = lambda w, x, *addends, **how: dense(w, x, inputs.more, *addends, **how)
        return super().step(params, inputs.gates, state, adds_both, cell_hook)


@pytest.mark.parametrize(
    ("transition", "message"),
    [(Careless(), "through `dense`"), (Greedy(), "adds one projected input")],  # the second's gradient was 0
    ids=["careless", "greedy"],
)
def test_matrices_are_multiplied_through_dense_alone(transition, message):
    recurrence = F.Recurrence(transition=transition)
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match=message):
        F.unroll(params, carry, x, recurrence)


@pytest.mark.parametrize("depth_skip", [F.ToOutput(), F.ToInternal(), F.ToGates(), F.Highway()])
def test_what_comes_from_below_is_of_the_size_that_fits(depth_skip):
    recurrence = F.Recurrence(depth_skip=depth_skip)
    params, carry, x, below = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match=f"from a layer of size 2 to one of size {HIDDEN}"):
        F.unroll(params, carry, x, recurrence, below=below[..., :2])


def test_a_skip_to_an_internal_state_that_is_never_offered_is_refused():
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rates", "skip"),
    [("lstm", (0.3, 0.6), "dynamic"), ("gru", (0.5,), "previous"), ("rhn", (0.5,), "skip-rnn")],
)
def test_zoneout_too(double_precision, name, rates, skip):
    recurrence = F.Recurrence(TIME_SKIPS[skip], TRANSITIONS[name])
    rng, shape = np.random.default_rng(0), (BATCH, TIME, HIDDEN)
    drawn = tuple((rng.random(shape) < rate).astype(float) for rate in rates)
    means = tuple(np.full(shape, rate) for rate in rates)
    results = []
    for implementation in ("fused", "reference"):
        options = dict(zoneout_mask=drawn, seq_lengths=np.array((TIME, 0, 1)))
        function, arguments = differentiated(implementation, recurrence, *problem(recurrence), **options)
        results.append((function(*arguments), function(*arguments[:-1], means)))
    assert_equal(*results)


@pytest.mark.parametrize(
    "name", and_slow(list(TIME_SKIPS), {"content", "dynamic", "attention", "skip-rnn"}.__contains__)
)
def test_packed_rows(double_precision, name):
    """Sequences that begin inside a row start from the initial state, whatever the skip reads and keeps."""
    rng = np.random.default_rng(1)
    transition = TRANSITIONS["slstm" if name == "content" else "lstm"]
    recurrence = F.Recurrence(TIME_SKIPS[name], transition)
    ids = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 2, 2, 3, 3], [5, 5, 5, 5, 5, 5, 6]])
    initial = transition.state(*(rng.normal(size=(BATCH, HIDDEN)) for _ in transition.state._fields))
    options = dict(segment_ids=ids, initial=initial, seq_lengths=np.array([7, 6, 0]))
    assert_same(recurrence, *problem(recurrence), **options)


@dataclasses.dataclass(frozen=True)
class Growing(F.IndRNN):
    """Overflows within the padding, where a step from the last state would go on."""

    name: ClassVar[str] = "growing"

    def step(self, params, inputs, state, dense, cell_hook=lambda cell: cell):
        new = super().step(params, inputs, state, dense, cell_hook)
        return new._replace(h=jnp.where(new.h > 0, new.h * 1e30, new.h))


@pytest.mark.parametrize("skip", [F.Previous(), F.Dynamic(3, 0.5), F.Attention(3, 0.5, agent="content")])
def test_padding_of_a_state_that_grows_leaves_gradients_finite(double_precision, skip):
    """A step past the end would overflow, and 0 times infinity is NaN: the state is held instead."""
    recurrence = F.Recurrence(skip, Growing())
    params, carry, x, below = problem(recurrence)
    long = np.tile(np.asarray(x), (1, 20, 1))
    padded = assert_same(recurrence, params, carry, long, below, seq_lengths=np.array([2, 1, 2]))
    cut = everything("fused", recurrence, params, carry, long[:, :2], below, seq_lengths=np.array([2, 1, 2]))
    for a, b in zip(jax.tree.leaves(padded[1][0]), jax.tree.leaves(cut[1][0]), strict=True):
        assert np.isfinite(a).all() and np.isfinite(b).all()


@dataclasses.dataclass(frozen=True)
class SeesCell(F.Dynamic):
    """A dynamic skip whose agent sees c as well as h: s(t) = h(t-1) ⊕ c(t-1) ⊕ x(t)."""

    name: ClassVar[str] = "sees_cell"

    def observed_array(self, transition):
        return "h", transition.cell_state

    def init(self, key, in_features, hidden, units, init):
        return super().init(key, in_features, 2 * hidden, units, init)


@pytest.mark.parametrize("mode", ["sample", "soft"])
@pytest.mark.parametrize("agent_input", ["previous", "mean"])
def test_an_agent_that_sees_several_arrays_of_the_state(double_precision, agent_input, mode):
    recurrence = F.Recurrence(SeesCell(3, 0.5, agent_input=agent_input))
    options = dict(policy=F.Policy(mode), seq_lengths=np.array(LENGTHS))
    _, gradients = assert_same(recurrence, *problem(recurrence), **options)
    assert gradients[0].skip.w_h.shape[0] == 2 * HIDDEN and np.abs(gradients[0].skip.w_h[HIDDEN:]).max() > 0
