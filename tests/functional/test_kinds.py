"""Check every public function of `dynskip_jax.functional` and `dynskip_jax.rl` on every kind of
input.

The kinds are unknown shapes (`jax.export`), strict promotion of dtypes, no rows and no steps, and
half precision. No value and no gradient may be NaN.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from recurrences import OPTIONS, TIME_SKIPS

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.functional.layers import LayersCall, LayerSpec, LayersSpec, run_layers

INPUT, HIDDEN, K, UNITS, WORDS = 2, 3, 3, 4, 5


class Argument(NamedTuple):
    """Specification of a random array: the kind of its numbers, its shape, and the range of
    integers.
    """

    kind: str
    shape: tuple
    low: int = 0
    high: int = 1


def of_kind(kind):
    return lambda *shape: Argument(kind, shape)


floats, positive, log_probs, flags, keys = map(
    of_kind, ("float", "positive", "log_probs", "bool", "key")
)


def whole(low, high, *shape):
    """Return the specification of an array of integers from `low` to `high`, both included."""
    return Argument("int", shape, low, high)


def weights(recurrence):
    """Return the specifications of the weights of a layer."""
    init = lambda key: recurrence.init(key, INPUT, HIDDEN, agent_features=UNITS)
    return jax.tree.map(lambda leaf: floats(*leaf.shape), jax.eval_shape(init, jax.random.key(0)))


def carry(recurrence, batch):
    skip, state = recurrence.time_skip, recurrence.transition.state
    ring = state(*(floats(batch, skip.max_skip, HIDDEN) for _ in state._fields))
    rows = whole(0, skip.max_skip - 1, batch), whole(1, skip.max_skip, batch)
    skip_state = floats(batch) if isinstance(skip, F.SkipRNN) else ()
    return F.SkipCarry(ring, *rows, whole(0, 4, batch), keys(batch), skip_state)


# Arguments of several functions.

DYNAMIC = F.Recurrence(F.Dynamic(K, 0.5, empty_slots="masked"))
LAYER = weights(DYNAMIC)
AGENT = LAYER.skip
CRF = F.CRFParams(floats(WORDS, WORDS), floats(WORDS), floats(WORDS))


def state(batch):
    return F.LSTMState(floats(batch, HIDDEN), floats(batch, HIDDEN))


def copies(batch, time):
    shape = (batch, time, K)
    return F.Copies(whole(-1, WORDS - 1, *shape), positive(*shape), floats(*shape))


def cells(batch, time):
    return floats(batch, time, HIDDEN)


def inputs(batch, time):
    return floats(batch, time, INPUT)


def copied(batch, time):
    return copies(batch, time), log_probs(batch, time), whole(0, WORDS, batch, time)


def penalised(batch, time):
    return cells(batch, time), flags(batch, time)


def keyed(batch, time):
    return keys(batch), cells(batch, time)


def unrolled(recurrence, mode="sample", **options):
    """Return a case of `unroll`: the function, and its arguments for a batch and a time."""

    def run(params, carry, x, lengths):
        return F.unroll(
            params, carry, x, recurrence, seq_lengths=lengths, policy=F.Policy(mode), **options
        )

    def arguments(batch, time):
        lengths = whole(0, time, batch)
        return weights(recurrence), carry(recurrence, batch), inputs(batch, time), lengths

    return run, arguments


def stacked(params, carry, x, lengths, key):
    layer = LayerSpec(DYNAMIC, HIDDEN, state_dtype=x.dtype, dtype=x.dtype, recurrent_dropout=0.5)
    spec = LayersSpec((layer,), dropout=(0.5, 0.5))
    call = LayersCall(x, None, lengths, None, None, (None,), (F.Policy(),), key, None)
    return run_layers(spec, (params,), call, deterministic=False)


def of_decisions(loss):
    """Return the case of a loss of decisions with a reward for each step."""

    def of_arrays(log_prob, entropy, valid, reward):
        action = jnp.ones(log_prob.shape, jnp.int32)
        return loss(F.DecisionTrace(action, log_prob, entropy, valid=valid), reward)

    return of_arrays, lambda b, t: (log_probs(b, t), positive(b, t), flags(b, t), floats(b, t))


def characters(words):
    """Return the case of `char_cnn` for words that are a batch, or each a step of a batch."""
    of_word = lambda w, x, lengths: F.char_cnn([F.CharFilters(*w)], x, lengths)
    return of_word, lambda b, t: ((floats(2, INPUT, HIDDEN), floats(HIDDEN)), *words(b, t))


# Keys are `name` or `name:variant`. Values are a function of arrays, and a function of batch and
# time that returns the specifications of these arrays.
CASES = {
    "activation_regularisation": (
        lambda x, valid: F.activation_regularisation(x, 2.0, valid),
        penalised,
    ),
    "temporal_activation_regularisation": (
        lambda x, valid: F.temporal_activation_regularisation(x, 1.0, valid),
        penalised,
    ),
    "agent_logits": (
        F.agent_logits,
        lambda b, t: (AGENT, floats(b, t, UNITS), cells(b, t), flags(b, t, K)),
    ),
    "averaged_log_likelihood": (
        partial(rl.averaged_log_likelihood, axis=1),
        lambda b, t: (log_probs(b, K),),
    ),
    "cached_log_likelihood": (
        lambda cache, *rest: F.cached_log_likelihood(cache, *rest, flatness=0.3, weight=0.1),
        lambda b, t: (
            F.CacheCarry(floats(b, K, HIDDEN), whole(-1, WORDS, b, K)),
            *(cells(b, t), whole(0, WORDS, b, t), log_probs(b, t)),
        ),
    ),
    "cast_matrices": (
        lambda w, b: F.cast_matrices((w, b), b.dtype),
        lambda b, t: (floats(2, 3), floats(3)),
    ),
    "char_cnn": characters(lambda b, t: (floats(b, t, 4, INPUT), whole(0, 4, b, t))),
    "char_cnn: characters": characters(lambda b, t: (inputs(b, t), whole(0, t, b))),
    "chosen_log_likelihood": (F.chosen_log_likelihood, copied),
    "chosen_log_likelihood_with_greedy_gates": (F.chosen_log_likelihood_with_greedy_gates, copied),
    "copied_log_likelihood": (F.copied_log_likelihood, copied),
    "copied_log_probs": (F.copied_log_probs, lambda b, t: (copies(b, t), log_probs(b, t, WORDS))),
    "copy_of_choice": (F.copy_of_choice, lambda b, t: (copies(b, t), whole(0, K, b, t))),
    "log_likelihood_of_each": (F.log_likelihood_of_each, copied),
    "crf_constrain": (
        F.crf_constrain,
        lambda b, t: (CRF, flags(WORDS, WORDS), flags(WORDS), flags(WORDS)),
    ),
    "crf_decode": (F.crf_decode, lambda b, t: (CRF, floats(b, t, WORDS), whole(0, t, b))),
    "crf_log_likelihood": (
        F.crf_log_likelihood,
        lambda b, t: (CRF, floats(b, t, WORDS), whole(0, WORDS - 1, b, t), whole(0, t, b)),
    ),
    "crf_marginals": (F.crf_marginals, lambda b, t: (CRF, floats(b, t, WORDS), whole(0, t, b))),
    "dropout": (lambda keys, x: F.dropout(keys, 0.5, x), keyed),
    "dropout: alike at all steps": (lambda keys, x: F.dropout(keys, 0.5, x, (1,)), keyed),
    "dropout_mask": (lambda keys, x: F.dropout_mask(keys, 0.5, x.shape, x.dtype), keyed),
    "empty_cache": (lambda x: F.empty_cache(x.shape[0], K, HIDDEN), lambda b, t: (whole(0, 1, b),)),
    "flip_sequences": (F.flip_sequences, lambda b, t: (cells(b, t), whole(0, t, b))),
    "followed_in": (
        lambda earlier, x: F.followed_in(earlier, x).compare(x),
        lambda b, t: (floats(b, K - 1, INPUT), inputs(b, t)),
    ),
    "followers": (F.followers, lambda b, t: (whole(0, WORDS, b, t), whole(-1, WORDS, b, K - 1))),
    "gated_window": (
        lambda w, b, x, lengths: F.gated_window(F.WindowGates(w, b), x, lengths),
        lambda b, t: (floats(3 * INPUT, 3), floats(3), inputs(b, t), whole(0, t, b)),
    ),
    "initial_carry": (
        lambda keys, state: F.initial_carry(keys, DYNAMIC, state),
        lambda b, t: (keys(b), state(b)),
    ),
    "last_valid": (F.last_valid, lambda b, t: (cells(b, t), whole(0, t, b))),
    "leave_one_out": (rl.leave_one_out, lambda b, t: (floats(b, t),)),
    "length_mask": (
        lambda lengths, x: F.length_mask(lengths, x.shape[1]),
        lambda b, t: (whole(0, t, b), floats(b, t)),
    ),
    "observations_in": (
        lambda rows, x: F.observations_in(rows, "slots", K, x.shape[1]),
        lambda b, t: (floats(b, t + K, HIDDEN), floats(b, t)),
    ),
    "oldest_first": (F.oldest_first, lambda b, t: (floats(b, K, HIDDEN), flags(b))),
    "product": (F.product, lambda b, t: (inputs(b, t), floats(INPUT, HIDDEN))),
    "project_agent_input": (F.project_agent_input, lambda b, t: (AGENT, inputs(b, t))),
    "project_inputs": (
        lambda params, x, valid: F.project_inputs(params, x, DYNAMIC, valid=valid),
        lambda b, t: (LAYER, inputs(b, t), flags(b, t)),
    ),
    "recurrent_step": (
        lambda params, start, x: F.recurrent_step(
            params, start, F.project_inputs(params, x, DYNAMIC), DYNAMIC
        ),
        lambda b, t: (LAYER, carry(DYNAMIC, b), floats(b, INPUT)),
    ),
    "reset_carry": (
        lambda start, state: F.reset_carry(start._replace(key=None), DYNAMIC, state),
        lambda b, t: (carry(DYNAMIC, b), state(b)),
    ),
    "restart_carry": (
        lambda start, state: F.restart_carry(start, DYNAMIC, state),
        lambda b, t: (carry(DYNAMIC, b), state(b)),
    ),
    "rollouts": (
        lambda keys, x: jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, 1),
            (jax.random.key_data(F.rollouts(keys, 2)), F.rollouts(x, 2)),
        ),
        keyed,
    ),
    "shared_key": (lambda keys: jax.random.key_data(F.shared_key(keys)), lambda b, t: (keys(b),)),
    "steps_since_start": (F.steps_since_start, lambda b, t: (whole(0, 4, b), flags(b, t))),
    "vimco": (partial(rl.vimco, axis=1), lambda b, t: (log_probs(b, K),)),
    "zero_state": (
        lambda x: F.zero_state(F.LSTM(), x.shape, x.dtype),
        lambda b, t: (floats(b, HIDDEN),),
    ),
    "zoneout": (
        lambda keys, steps, x: F.zoneout(keys, steps, (0.5, 0.0), HIDDEN, x.dtype),
        lambda b, t: (keys(b, 1), whole(0, 4, b, t), cells(b, t)),
    ),
    # PPO: actions of two parts, of 3 and 2 choices.
    "action_entropy": (lambda x: rl.action_entropy(x, (3, 2)), lambda b, t: (floats(b, t, 5),)),
    "action_log_prob": (
        lambda x, actions: rl.action_log_prob(x, actions, (3, 2)),
        lambda b, t: (floats(b, t, 5), whole(0, 1, b, t, 2)),
    ),
    "clipped_surrogate": (
        lambda ratios, advantages: rl.clipped_surrogate(ratios, advantages, 0.2),
        lambda b, t: (floats(b, t), floats(b, t)),
    ),
    "generalized_advantages": (
        rl.generalized_advantages,
        lambda b, t: (floats(b, t), positive(b, t), positive(b, t), floats(b, t), floats(b, t)),
    ),
    # Losses of decisions.
    "agent_loss": of_decisions(lambda trace, x: rl.agent_loss(trace, x.sum(axis=1))),
    "entropy": of_decisions(lambda trace, x: rl.entropy(trace, weights=x)),
    "loss": of_decisions(rl.loss),
    "network_loss": of_decisions(rl.network_loss),
    "reinforce": of_decisions(
        lambda trace, x: rl.reinforce(trace, x, discount=0.9, entropy_coef=0.1)
    ),
    "tokens_read": of_decisions(
        lambda trace, x: rl.tokens_read(
            dataclasses.replace(trace, update=x, update_is_differentiable=True)
        )
    ),
    # Unrolls.
    "unroll: layers": (stacked, lambda b, t: (LAYER, (), inputs(b, t), whole(0, t, b), keys())),
    "unroll: reference": unrolled(DYNAMIC, implementation="reference"),
    "unroll: relaxed": unrolled(DYNAMIC, "gumbel_softmax"),
    "unroll: parallel": unrolled(F.Recurrence(transition=F.MinLSTM()), implementation="parallel"),
    "unroll: skim_rnn": unrolled(F.Recurrence(F.SkimRNN(), F.SkimLSTM(2))),
    "unroll: slstm": unrolled(F.Recurrence(F.Attention(K, 0.5), F.SLSTM()), "greedy"),
}
SKIPS = [
    "dynamic masked",
    "attention",
    "dynamic-content",
    "log masked",
    "segment-dynamic",
    "sparse masked",
]
for name in (*SKIPS, "fixed", "skip-rnn"):
    CASES[f"unroll: {name}"] = unrolled(F.Recurrence((TIME_SKIPS | OPTIONS)[name]))
for name in ("last", "mean", "max"):
    CASES[f"pool_states: {name}"] = (
        lambda x, where, name=name: F.pool_states(x, where, name, backward=1),
        penalised,
    )
for name in F.RELAXATIONS:
    CASES[f"relaxed_weights: {name}"] = (
        lambda log_probs, noise, name=name: F.relaxed_weights(log_probs, noise, name, 0.5),
        lambda b, t: (log_probs(b, t, K), floats(b, t, K)),
    )

# Functions that take no arrays.
EXEMPT = {"parse_depth_skip", "parse_time_skip", "parse_transition", "register_for_export"}

# Functions (by prefix) whose float outputs are wider than half precision on purpose, and the
# reason.
WIDER = {"crf_": "sums over sequences are taken in float32 at least", "empty_cache": "float32"}


def arguments_of(name, batch, time, make):
    """Return what `make` makes of each argument of a case."""
    return jax.tree.map(
        make, CASES[name][1](batch, time), is_leaf=lambda leaf: isinstance(leaf, Argument)
    )


def drawn(name, batch, time, dtype):
    """Return the arguments of a case as random arrays."""
    rng = np.random.default_rng(0)

    def draw(argument):
        kind, shape = argument.kind, argument.shape
        if kind == "key":
            return jax.random.split(jax.random.key(0), shape)
        if kind == "bool":
            return rng.random(shape) < 0.5
        if kind == "int":
            return rng.integers(argument.low, argument.high, shape, np.int32, endpoint=True)
        numbers = rng.normal(size=shape)
        if kind == "positive":
            numbers = np.abs(numbers) + 0.1
        elif kind == "log_probs":
            numbers = -np.abs(numbers)
        return np.asarray(numbers, dtype)

    return arguments_of(name, batch, time, draw)


def described(name, batch, time, dtype):
    """Return the arguments of a case as shapes and dtypes."""
    dtypes = {"key": jax.random.key(0).dtype, "bool": np.bool_, "int": np.int32}
    shaped = lambda argument: jax.ShapeDtypeStruct(argument.shape, dtypes.get(argument.kind, dtype))
    return arguments_of(name, batch, time, shaped)


def is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def with_gradients(name):
    """Return a function that computes a case's outputs, and gradients with respect to its float
    arguments.
    """
    function = CASES[name][0]

    def outputs(*arguments):
        leaves, structure = jax.tree.flatten(arguments)
        wanted = [i for i, leaf in enumerate(leaves) if is_float(leaf)]

        def loss(values):
            for i, value in zip(wanted, values, strict=True):
                leaves[i] = value
            out = function(*structure.unflatten(leaves))
            parts = [leaf for leaf in jax.tree.leaves(out) if is_float(leaf)]
            return sum(
                (jnp.sum(jnp.sin(leaf).astype(jnp.float32)) for leaf in parts), jnp.float32(0)
            ), out

        if not wanted:
            return function(*arguments), ()
        gradients, out = jax.grad(loss, has_aux=True)([leaves[i] for i in wanted])
        return out, gradients

    return outputs


def test_every_public_function_has_a_case():
    public = [
        item for module in (F, rl) for item in vars(module).items() if not item[0].startswith("_")
    ]
    functions = {name for name, it in public if callable(it) and not isinstance(it, type)}
    names = {name.split(":")[0] for name in CASES}
    assert functions - names - EXEMPT == set(), "add the new functions to CASES, or to EXEMPT"
    assert (names | EXEMPT) - functions == set(), "these are no longer public"


@pytest.mark.parametrize("name", CASES)
def test_shapes_may_be_unknown(name):
    batch, time = export.symbolic_shape("batch, time")
    arguments = described(name, batch, time, jnp.float32)
    export.export(jax.jit(CASES[name][0]))(*arguments)


def test_a_second_registration_does_nothing():
    pytest.importorskip("flatbuffers", reason="exported programs are written with flatbuffers")
    assert F.register_for_export(F.LSTMState) is F.LSTMState
    state = F.LSTMState(jnp.ones(2), jnp.zeros(2))
    program = export.export(jax.jit(lambda state: state))(state)
    assert isinstance(export.deserialize(program.serialize()).call(state), F.LSTMState)


def is_wider(name):
    return any(name.startswith(prefix) for prefix in WIDER)


@pytest.mark.parametrize("name", CASES)
def test_no_rows_and_no_steps_are_taken_and_narrow_dtypes_stay(name):
    with jax.numpy_dtype_promotion("strict"):
        specs = described(name, 0, 0, jnp.bfloat16)
        out, gradients = jax.eval_shape(with_gradients(name), *specs)
    leaves = jax.tree.leaves(gradients)
    if not is_wider(name):
        leaves += [leaf for leaf in jax.tree.leaves(out) if is_float(leaf)]
    assert all(leaf.dtype == jnp.bfloat16 for leaf in leaves)


# Functions that take a logarithm, a root, a quotient or an exponential, or that select by `where`.
MAY_BE_NAN = [
    *("averaged_log_likelihood", "cached_log_likelihood", "chosen_log_likelihood"),
    *("copied_log_likelihood", "copied_log_probs", "log_likelihood_of_each"),
    *("crf_log_likelihood", "crf_marginals", "char_cnn", "gated_window", "vimco", "zoneout"),
    *("loss", "reinforce", "entropy", "leave_one_out"),
    *("pool_states: mean", "pool_states: max", "relaxed_weights: reinmax"),
    *("unroll: layers", "unroll: reference", "unroll: relaxed", "unroll: slstm"),
    *("unroll: log masked", "unroll: sparse masked", "unroll: skim_rnn", "unroll: skip-rnn"),
]


@pytest.mark.parametrize("name", MAY_BE_NAN)
def test_no_number_is_nan(name):
    with jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        results = jax.jit(with_gradients(name))(*drawn(name, 2, 3, np.float32))
    for leaf in jax.tree.leaves(results):
        if is_float(leaf):
            assert np.isfinite(np.asarray(leaf, np.float64)).all()
