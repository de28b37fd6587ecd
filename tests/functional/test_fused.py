"""The fused unroll against the scan of the reference step, for every choice there is."""

import dataclasses
import itertools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import unroll
from marks import and_slow
from recurrences import (
    BATCH,
    DEPTH_SKIPS,
    HIDDEN,
    LENGTHS,
    TIME,
    TIME_SKIPS,
    TRANSITIONS,
    assert_same,
    everything,
    problem,
)

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional import fused_loop
from dynskip_jax.functional.stored import History

OPTIONS = {
    "lstm-mixed": F.Fixed(1, 0.3),
    "attention mean": F.Attention(3, 0.5, agent_input="mean"),
    "attention masked": F.Attention(4, 1.0, empty_slots="masked"),
    "attention carried": F.Attention(3, 0.5, first_step="carried"),
    "content carried": F.ContentAttention(3, 0.5, first_step="carried"),
    "dynamic:1": F.Dynamic(1, 0.5),
    "dynamic mean": F.Dynamic(3, 0.5, agent_input="mean"),
    "dynamic masked": F.Dynamic(4, 0.5, empty_slots="masked"),
    "dynamic strided": F.Dynamic(5, 0.5, stride=2, empty_slots="masked"),
    "dynamic by content": F.Dynamic(4, 0.5, agent="content", empty_slots="masked"),
    "nothing moved": F.Dynamic(4, 0.0, empty_slots="masked"),
    "nothing moved, by content": F.Dynamic(4, 0.0, agent="content"),
    "nothing moved, random": F.Random(3, 0.0),
    "nothing moved, carried": F.Dynamic(3, 0.0, first_step="carried"),
    "dynamic carried": F.Dynamic(3, 0.5, first_step="carried"),
    "fixed carried": F.Fixed(3, 0.5, first_step="carried"),
    "longer than the sequence": F.Dynamic(12, 0.5),
    "fixed, longer": F.Fixed(12, 0.5),
    "released": F.Dynamic(4, 1.0, agent_input="mean", first_step="carried"),
}


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


# All of them, each direction in turn. By default each transition, time skip and place in depth is there once
# at least, and options of a transition with the dynamic skip alone.
MAIN = [name for name in TRANSITIONS if "no-output-gate" not in name and name != "peephole-full"]
EVERY = [
    (transition, time_skip, depth_skip, (i + j + k) % 2 == 1)
    for (i, transition), (j, time_skip), (k, depth_skip) in itertools.product(
        enumerate(MAIN), enumerate(TIME_SKIPS), enumerate(DEPTH_SKIPS)
    )
]
SOME = [
    EVERY[(i % len(MAIN) * len(TIME_SKIPS) + i % len(TIME_SKIPS)) * len(DEPTH_SKIPS) + i % len(DEPTH_SKIPS)]
    for i in range(max(len(MAIN), len(TIME_SKIPS), len(DEPTH_SKIPS)))
]
SOME += [
    (name, "dynamic", list(DEPTH_SKIPS)[i], i % 2 == 1)
    for i, name in enumerate(name for name in TRANSITIONS if name not in MAIN)
]


def parameters(cases, marks=()):
    return [
        pytest.param(*case, id=" ".join([*case[:3], "backward" if case[3] else "forward"]), marks=marks)
        for case in cases
    ]


@pytest.mark.parametrize(
    ("transition", "time_skip", "depth_skip", "reverse"),
    parameters(SOME) + parameters([case for case in EVERY if case not in SOME], pytest.mark.slow),
)
def test_outputs_and_gradients_equal_those_of_the_reference(
    double_precision, transition, time_skip, depth_skip, reverse
):
    recurrence = F.Recurrence(TIME_SKIPS[time_skip], TRANSITIONS[transition], DEPTH_SKIPS[depth_skip])
    _, gradients = assert_same(
        recurrence, *problem(recurrence), seq_lengths=jnp.array(LENGTHS), reverse=reverse, keep_order=True
    )
    for path, gradient in jax.tree.leaves_with_path(gradients[0]):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "name",
    and_slow(
        OPTIONS,
        {"content carried", "dynamic mean", "dynamic carried", "dynamic strided"}.__contains__,
    ),
)
def test_the_options_of_time_skips(double_precision, name):
    recurrence = F.Recurrence(OPTIONS[name])
    assert_same(recurrence, *problem(recurrence), seq_lengths=jnp.array((7, 2, 5)))


@pytest.mark.parametrize(
    "name", and_slow(["previous", "fixed", "attention", "dynamic", "skip-rnn"], "dynamic".__eq__)
)
def test_without_lengths_too(double_precision, name):
    recurrence = F.Recurrence(TIME_SKIPS[name])
    assert_same(recurrence, *problem(recurrence))


@pytest.mark.parametrize("length", [3, TIME], ids=["shorter than K", "longer"])
@pytest.mark.parametrize(
    ("skip", "mix"),
    [(F.Dynamic(5, 0.0), None), (F.Dynamic(5, 1.0), 0.0), (F.Previous(max_skip=5), None)],
    ids=["λ = 0", "a policy's", "plain"],
)
def test_gradients_of_the_last_carry_where_nothing_is_moved(double_precision, skip, mix, length):
    """What is not returned whole, c here, had the gradient of its oldest row in place of all K."""
    recurrence = F.Recurrence(skip)
    params, carry, x, below = problem(recurrence)
    policy = F.Policy("greedy", mix=mix)
    assert_same(recurrence, params, carry, x[:, :length], below, policy=policy, return_memory=False)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_wider_inputs_and_numbers_leave_a_narrow_state_as_it_is(implementation):
    recurrence = F.Recurrence(F.Dynamic(3), F.LSTM(), F.GatedToOutput())
    params, carry, x, below = problem(recurrence, jnp.bfloat16)
    policy = F.Policy("soft", mix=jnp.float32(0.5), temperature=jnp.float32(0.7))
    wide = x.astype(jnp.float32), below.astype(jnp.float32)
    end, out = unroll(
        params, carry, wide[0], recurrence, below=wide[1], policy=policy, implementation=implementation
    )
    assert {leaf.dtype for leaf in (out.h, *end.slots)} == {jnp.dtype(jnp.bfloat16)}
    narrow = dict(
        policy=F.Policy("soft", mix=0.5, temperature=0.7), below=below, implementation=implementation
    )
    expected = unroll(params, carry, x, recurrence, **narrow)[1].h
    np.testing.assert_allclose(out.h.astype(np.float32), expected.astype(np.float32), atol=0.05)


def test_queries_meet_the_states_before_them_in_blocks_too(double_precision):
    rng = np.random.default_rng(0)
    for K, time in ((5, 129), (5, 300), (70, 141), (70, 300)):
        query, rows = rng.normal(size=(2, time, 4)), rng.normal(size=(2, K + time - 1, 4))
        found = History(jnp.asarray(rows), K).compare(jnp.asarray(query))
        expected = [
            [[query[b, t] @ rows[b, t + K - k] for k in range(1, K + 1)] for t in range(time)] for b in (0, 1)
        ]
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_memory_of_choices_by_content_grows_as_time():
    def needed(time):
        compare = jax.jit(lambda rows, query: History(rows, 5).compare(query))
        compiled = compare.lower(jnp.zeros((2, time + 4, 8)), jnp.zeros((2, time, 8))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert needed(8000) < 3 * needed(4000)


@pytest.mark.parametrize(
    ("name", "mode"),
    and_slow(
        [
            ("dynamic masked", "soft"),
            ("dynamic by content", "soft"),
            ("nothing moved, by content", "soft"),
            ("nothing moved", "gumbel_softmax"),
            ("released", "gumbel_softmax"),
            ("dynamic masked", "straight_through"),
            ("dynamic mean", "reinmax"),
        ],
        lambda name, mode: (mode != "soft" and name != "nothing moved") or name == "dynamic by content",
    ),
)
def test_relaxed_choices_too(double_precision, name, mode):
    recurrence = F.Recurrence(OPTIONS[name])
    allowed = jnp.array([True] * (OPTIONS[name].max_skip - 1) + [False])
    options = dict(policy=F.Policy(mode, temperature=jnp.asarray(0.7), mask=allowed))
    assert_same(recurrence, *problem(recurrence), seq_lengths=jnp.array((7, 2, 5)), **options)


def test_a_gradient_reaches_a_traced_temperature(double_precision):
    """It was 0 once: the loop took temperatures for constants."""
    for skip, mode in ((F.Attention(3, 0.5), "sample"), (F.Dynamic(3, 0.5), "gumbel_softmax")):
        recurrence = F.Recurrence(skip)
        _, gradients = assert_same(recurrence, *problem(recurrence), policy=F.Policy(mode, jnp.asarray(0.7)))
        assert abs(float(gradients[-1].temperature)) > 1e-3


@pytest.mark.parametrize("name", and_slow(["previous", "attention", "dynamic", "skip-rnn"], "dynamic".__eq__))
def test_and_in_float32(name):
    recurrence = F.Recurrence(TIME_SKIPS[name], F.GRU("before"))
    lengths = jnp.array((7, 2, 5))
    assert_same(recurrence, *problem(recurrence, jnp.float32), seq_lengths=lengths, rtol=2e-5)


@pytest.mark.parametrize(
    ("transition", "name"),
    [
        ("lstm", "dynamic"),
        ("gru-before", "attention"),
        ("rhn", "previous"),
        pytest.param("full-gate", "attention", marks=pytest.mark.slow),
        pytest.param("gru", "dynamic", marks=pytest.mark.slow),
    ],
)
def test_the_options_of_the_unroll(double_precision, name, transition):
    skip = TIME_SKIPS[name]
    recurrence = F.Recurrence(skip, TRANSITIONS[transition], F.GatedToOutput())
    params, carry, x, below = problem(recurrence, steps=2)
    mask = F.dropout_mask(jax.random.key(3), 0.5, (BATCH, HIDDEN), x.dtype)
    dropped = carry._replace(recurrent_mask=mask)
    policy = F.Policy(mix=jnp.asarray(0.3, x.dtype) if skip.fixed_slot is None else None)
    lengths = jnp.array((7, 2, 5))
    if skip.is_stochastic:
        actions = jax.random.randint(jax.random.key(4), (BATCH, TIME), 1, skip.max_skip + 1)
        assert_same(recurrence, params, dropped, x, below, policy, actions=actions, seq_lengths=lengths)
    else:
        assert_same(recurrence, params, dropped, x, below, policy, seq_lengths=lengths)
    assert_same(recurrence, params, carry, x[:, :1], below[:, :1], seq_lengths=jnp.array((1, 0, 1)))


class Counted(NamedTuple):
    count: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class CountedWeights(F.TimeSkip):
    """Weights on the last K states by a query of a level and a count, which it carries."""

    observed: ClassVar[str] = "slots"

    def differentiable(self, mode, replayed):
        return True

    def init(self, key, in_features, hidden, agent_features, init):
        return init.draw(init.kernel, key, (in_features, hidden))

    def initial_own(self, batch, dtype):
        return Counted(jnp.zeros(batch, jnp.int32), jnp.zeros(batch, dtype))

    def project(self, params, x):
        return F.product(x, params)

    def choose(self, params, inputs, observation, own, mode):
        odd = (own.count % 2).astype(observation.dtype)
        query = inputs.projected + (own.level + odd)[..., None]
        scores = jnp.einsum("...kh,...h->...k", observation, query)
        return F.Choice(weights=jax.nn.softmax(scores)), Counted(
            own.count + 1, own.level / 2 + scores[..., 0]
        )


def test_a_skip_that_carries_whole_numbers_beside_what_it_learns(double_precision):
    """Whole numbers have no adjoint, and the loop back over time had failed on theirs."""
    recurrence = F.Recurrence(CountedWeights(3, 0.5))
    (end, _), gradients = assert_same(recurrence, *problem(recurrence), seq_lengths=jnp.array(LENGTHS))
    np.testing.assert_array_equal(end.own.count, LENGTHS)
    assert np.abs(gradients[0].skip).max() > 0


def test_policy_masks(double_precision):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    arguments = problem(recurrence, steps=2)
    allowed = np.ones((BATCH, 3), bool)
    allowed[0, 1] = allowed[2, :2] = False
    assert_same(recurrence, *arguments, policy=F.Policy("greedy", mask=jnp.array(allowed)))
    mask = jnp.array(allowed[0])
    assert_same(recurrence, *arguments, policy=F.Policy(mask=mask), seq_lengths=jnp.array((7, 2, 5)))


@pytest.mark.parametrize("name", ["previous", "fixed", "attention", "dynamic", "skip-rnn"])
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
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-10, atol=1e-10)


def test_the_ways_to_multiply_by_the_transpose_are_one():
    """Sizes on each side of the limits between them; see `_times_transposed`."""
    for rows, hidden in ((3, 8), (40, 128), (40, 256)):
        w = jax.random.normal(jax.random.key(0), (hidden, 4 * hidden))
        d = jax.random.normal(jax.random.key(1), (rows, 4 * hidden))
        np.testing.assert_allclose(fused_loop._times_transposed(w, rows)(d), d @ w.T, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_gradients_reach_what_was_carried_from_the_segment_before(double_precision):
    """Two segments in a row, differentiated together, are one long sequence."""
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
    for name in ("previous", "dynamic", "skip-rnn"):
        recurrence = F.Recurrence(TIME_SKIPS[name])
        params, carry, x, _ = problem(recurrence)
        for implementation in ("fused", "reference"):
            end, out = unroll(params, carry, x[:, :0], recurrence, implementation=implementation)
            assert out.h.shape == (BATCH, 0, HIDDEN) and out.decision.action.shape == (BATCH, 0)
            for a, b in zip(jax.tree.leaves(end.slots), jax.tree.leaves(carry.slots), strict=True):
                np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(end.step, 0)
    segments = jnp.zeros((BATCH, 0), int)
    assert unroll(params, carry, x[:, :0], recurrence, segment_ids=segments)[1].h.shape == (
        BATCH,
        0,
        HIDDEN,
    )
    for pooling in ("last", "mean", "max"):
        pooled = F.pool_states(out.h, jnp.zeros((BATCH, 0), bool), pooling)
        np.testing.assert_array_equal(pooled, np.zeros((BATCH, HIDDEN)))


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("name", and_slow(["previous", "attention", "dynamic"], "dynamic".__eq__))
def test_what_stands_in_the_padding_has_no_effect(double_precision, name, implementation):
    """Not a number there once made every weight's gradient not a number."""
    recurrence = F.Recurrence(TIME_SKIPS[name], F.LSTM(), F.GatedToOutput())
    params, carry, x, below = problem(recurrence)
    lengths = jnp.array((7, 2, 5))
    padding = (jnp.arange(TIME)[None] >= lengths[:, None])[..., None]
    spoiled = (jnp.where(padding, jnp.nan, x), jnp.where(padding, jnp.inf, below))
    clean = everything(implementation, recurrence, params, carry, x, below, seq_lengths=lengths)
    outputs, gradients = everything(implementation, recurrence, params, carry, *spoiled, seq_lengths=lengths)
    for a, b in zip(jax.tree.leaves(outputs), jax.tree.leaves(clean[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(jax.tree.leaves(gradients[0]), jax.tree.leaves(clean[1][0]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(implementation="quick"), "unknown implementation 'quick': choose fused or reference or cudnn"),
        (dict(policy=F.Policy(mix=1.5)), "mix .* between 0 and 1, got 1.5"),
        (dict(policy=F.Policy(mix=-0.1)), "mix .* between 0 and 1"),
        (dict(seq_lengths=jnp.array([7, 8, 1])), "seq_lengths lie between 0 and 7, got 1 to 8"),
        (dict(seq_lengths=jnp.array([7, -1, 1])), "seq_lengths lie between 0 and 7, got -1 to 7"),
        (dict(actions=jnp.full((BATCH, TIME), 4)), "actions lie between 1 and 3, got 4 to 4"),
        (dict(actions=jnp.zeros((BATCH, TIME), int)), "actions lie between 1 and 3, got 0 to 0"),
        (dict(below=jnp.zeros((BATCH, TIME, HIDDEN))), "no skip over depth: leave out below"),
        (dict(policy=F.Policy(mask=[True, False, True])), "a policy's mask is an array"),
    ],
    ids=["implementation", "mix", "negative-mix", "long", "negative", "far", "none", "below", "mask"],
)
def test_a_call_that_makes_no_sense_is_refused_in_one_line(implementation, options, message):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match=message) as error:
        F.unroll(params, carry, x, recurrence, **{"implementation": implementation, **options})
    assert "\n" not in str(error.value)


def test_traced_lengths_and_actions_beyond_their_range_count_as_its_ends(double_precision):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5))
    params, carry, x, _ = problem(recurrence)
    actions = jax.random.randint(jax.random.key(4), (BATCH, TIME), 1, 4)

    def run(lengths, actions, implementation):
        settings = dict(seq_lengths=lengths, actions=actions, implementation=implementation)
        return F.unroll(params, carry, x, recurrence, **settings)[1]

    for implementation in ("fused", "reference"):
        program = jax.jit(run, static_argnums=2)
        beyond = program(jnp.array([9, -2, 7]), jnp.where(actions == 3, 8, actions), implementation)
        within = program(jnp.array([7, 0, 7]), actions, implementation)
        for a, b in zip(jax.tree.leaves(beyond), jax.tree.leaves(within), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_first_action_is_the_one_that_was_taken():
    """At a tie, where every bit counts: the state that entered is that of the reported action."""
    recurrence = F.Recurrence(F.Dynamic(3, 1.0))
    params, carry, x, _ = problem(recurrence, jnp.float32)
    agent = params.skip._replace(w_out=jnp.zeros_like(params.skip.w_out), b_out=jnp.array([0.0, 1e-8, -1e-8]))
    params = params._replace(skip=agent)
    _, sampled = F.unroll(params, carry, x, recurrence)
    _, replayed = F.unroll(params, carry, x, recurrence, actions=sampled.decision.action)
    np.testing.assert_array_equal(sampled.h, replayed.h)


@pytest.mark.parametrize(
    "name", and_slow(["attention", "content", "dynamic", "dynamic-content"], lambda name: "content" in name)
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


def test_matrices_are_multiplied_through_dense_alone():
    class Careless(F.LSTM):
        def step(self, params, inputs, state, dense, into_memory=None):
            return state._replace(h=state.h @ params.w_h)

    recurrence = F.Recurrence(transition=Careless())
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match="through `dense`"):
        F.unroll(params, carry, x, recurrence)


def test_what_a_product_adds_is_one_projected_input():
    """The gradient of a second one was 0."""

    class Inputs(NamedTuple):
        gates: jax.Array
        more: jax.Array

    class Greedy(F.LSTM):
        def project(self, params, x):
            return Inputs(super().project(params, x), super().project(params, x))

        def step(self, params, inputs, state, dense, into_memory=None):
            def adds_both(w, x, *addends, **how):
                return dense(w, x, inputs.more, *addends, **how)

            return super().step(params, inputs.gates, state, adds_both, into_memory)

    recurrence = F.Recurrence(transition=Greedy())
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match="adds one projected input"):
        F.unroll(params, carry, x, recurrence)


@pytest.mark.parametrize("depth_skip", [F.ToOutput(), F.ToInternal(), F.ToGates(), F.Highway()])
def test_what_comes_from_below_is_of_the_size_that_fits(depth_skip):
    recurrence = F.Recurrence(depth_skip=depth_skip)
    params, carry, x, below = problem(recurrence, jnp.float32)
    for width in (1, 2, HIDDEN + 1):
        with pytest.raises(UserError, match=f"from a layer of size {width} to one of size {HIDDEN}"):
            F.unroll(params, carry, x, recurrence, below=jnp.ones((*below.shape[:2], width)))


def test_a_skip_to_an_internal_state_that_is_never_offered_is_refused():
    class Closed(F.LSTM):
        def step(self, params, inputs, state, dense, into_memory=None):
            return super().step(params, inputs, state, dense)

    recurrence = F.Recurrence(transition=Closed(), depth_skip=F.ToInternal())
    params, carry, x, below = problem(recurrence, jnp.float32)
    for implementation in ("fused", "reference"):
        with pytest.raises(UserError, match="Closed calls no into_memory"):
            F.unroll(params, carry, x, recurrence, below=below, implementation=implementation)
    with pytest.raises(UserError, match="needs what comes from below"):
        F.unroll(params, carry, x, recurrence)


@pytest.mark.slow
def test_a_second_derivative_is_right(double_precision):
    """Of reverse mode over reverse mode."""
    recurrence = F.Recurrence(F.Attention(3, 0.5))
    params, carry, x, _ = problem(recurrence)

    def squared(x, implementation):
        def loss(x):
            return jnp.sum(
                jnp.sin(F.unroll(params, carry, x, recurrence, implementation=implementation)[1].h)
            )

        return jnp.sum(jax.grad(loss)(x) ** 2)

    second = [jax.jit(jax.grad(squared), static_argnums=1)(x, name) for name in ("fused", "reference")]
    np.testing.assert_allclose(*second, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "rates", "skip"),
    [
        ("lstm", (0.3, 0.6), "dynamic"),
        ("gru", (0.5,), "previous"),
        *(
            pytest.param(name, rates, skip, marks=pytest.mark.slow)
            for name, rates, skip in (
                ("lstm", (0.3, 0.6), "skip-rnn"),
                ("gru", (0.5,), "dynamic"),
                ("rhn", (0.5,), "previous"),
                ("rhn", (0.5,), "skip-rnn"),
            )
        ),
    ],
)
def test_zoneout_too(double_precision, name, rates, skip):
    recurrence = F.Recurrence(TIME_SKIPS[skip], TRANSITIONS[name])
    params, carry, x, below = problem(recurrence)
    steps = carry.step[:, None] + jnp.arange(TIME)[None]
    for deterministic, lengths in ((False, jnp.array((TIME, 0, 1))), (True, None)):
        kept = F.zoneout(carry.key[:, None], steps, rates, HIDDEN, x.dtype, deterministic=deterministic)
        assert_same(recurrence, params, carry, x, below, kept=kept, seq_lengths=lengths)
