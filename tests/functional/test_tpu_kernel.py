"""Compare the TPU kernel with the reference in simulation: races are detected, and memory starts as
NaN.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.engine import tpu_kernel

BATCH, TIME, INPUT, HIDDEN = 3, 4, 2, 5
POLICY = F.Policy()


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setattr(tpu_kernel, "ANYWHERE", True)
    with pltpu.force_tpu_interpret_mode(
        pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    ):
        yield


def problem(skip, *, batch=BATCH, time=TIME, hidden=HIDDEN, dtype=np.float32, replayed=False):
    """Return the recurrence, the weights, a carry with K different states, the inputs and the
    actions.
    """
    rng, recurrence = np.random.default_rng(0), F.Recurrence(skip)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    lstm = F.LSTMParams(
        draw(INPUT, 4 * hidden), draw(hidden, 4 * hidden) / hidden**0.5, draw(4 * hidden)
    )
    agent = (hidden, 7), (INPUT, 7), (7,), (7, skip.max_skip), (skip.max_skip,)
    agent = F.AgentParams(*(draw(*shape) for shape in agent)) if skip.has_agent else None
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), F.LayerParams(lstm, agent))
    state = F.LSTMState(*(jnp.asarray(draw(batch, hidden)) for _ in "hc"))
    carry = F.initial_carry(jax.random.split(jax.random.key(1), batch), recurrence, state)
    slots = F.LSTMState(*(jnp.asarray(draw(batch, skip.max_skip, hidden)) for _ in "hc"))
    actions = (
        jnp.asarray(rng.integers(1, skip.max_skip + 1, (batch, time)), jnp.int32)
        if replayed
        else None
    )
    return (
        recurrence,
        params,
        carry._replace(slots=slots),
        jnp.asarray(draw(batch, time, INPUT)),
        actions,
    )


def unrolled(recurrence, params, carry, x, actions, lengths, policy, by_kernel):
    options = dict(seq_lengths=lengths, actions=actions, policy=policy, return_cell_state=True)
    implementation = "tpu_kernel" if by_kernel else "reference"
    return F.unroll(params, carry, x, recurrence, implementation=implementation, **options)


def compare(skip, *, lengths=None, policy=POLICY, rtol=1e-5, atol=1e-5, gradients=True, **sizes):
    recurrence, params, carry, x, actions = problem(skip, **sizes)
    lengths = None if lengths is None else jnp.asarray(lengths, jnp.int32)

    def loss(params, x, slots, by_kernel):
        start = carry._replace(slots=slots)
        end, out = unrolled(recurrence, params, start, x, actions, lengths, policy, by_kernel)
        total = (
            jnp.sum(jnp.sin(out.h))
            + jnp.sum(jnp.cos(out.cell_state))
            + jnp.sum(out.decision.log_prob)
        )
        total += jnp.sum(out.decision.entropy) + jnp.sum(jnp.sin(end.slots.h * end.slots.c))
        return total, (end._replace(key=None), out)

    function = jax.value_and_grad(loss, (0, 1, 2), has_aux=True) if gradients else loss
    program = jax.jit(function, static_argnums=3)
    expected, found = (program(params, x, carry.slots, by_kernel) for by_kernel in (False, True))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=rtol, atol=atol
        )


CASES = {
    "values": (F.Dynamic(3, 0.7), dict(lengths=[4, 0, 2], gradients=False)),
    "plain": (F.Previous(), {}),
    "fixed": (F.Fixed(3, 0.5), dict(lengths=[4, 1, 2])),
    "sampled": (F.Dynamic(3, 0.7), dict(lengths=[4, 0, 2])),
    "greedy": (F.Dynamic(2), dict(policy=F.Policy("greedy"))),
    "replayed": (F.Dynamic(10), dict(replayed=True)),
    "masked": (F.Dynamic(4, empty_slots="masked"), dict(policy=F.Policy(mask=np.arange(4) != 2))),
    "λ = 0": (F.Dynamic(2, 0.0), {}),
    "one state": (F.Dynamic(1), {}),
    "bfloat16": (F.Dynamic(3, 0.7), dict(dtype=jnp.bfloat16, rtol=0.02, atol=0.02)),
    "odd sizes": (F.Dynamic(5, 0.5), dict(batch=20, hidden=130, time=3, atol=1e-4)),
    "large": (F.Dynamic(5), dict(batch=20, hidden=650, time=3, atol=1e-3)),
}


@pytest.mark.parametrize("name", and_slow(CASES, "values".__eq__))
def test_values_and_gradients_are_those_of_the_reference(name):
    skip, options = CASES[name]
    compare(skip, **options)


@pytest.mark.slow
def test_mapped_calls_are_the_calls_one_by_one():
    recurrence, params, carry, x, actions = problem(F.Dynamic(2, 0.5), time=2)
    xs = jnp.stack([x, 2 * x])
    run = lambda x, by: unrolled(recurrence, params, carry, x, actions, None, POLICY, by)[1].h
    found = [jax.vmap(lambda x, by=by: run(x, by))(xs) for by in (True, False)]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("skip", "options", "why"),
    [
        (F.Dynamic(2, agent="content"), {}, "only mlp agents"),
        (F.Dynamic(2, first_step="carried"), {}, "first_step"),
        (F.Dynamic(2), dict(policy=F.Policy("soft")), "no relaxed choices"),
        (F.Dynamic(2), dict(policy=F.Policy(mix=np.float32(0.5))), "λ as a number"),
        (F.Attention(2), {}, "only Previous, Fixed and Dynamic"),
        (F.Previous(), dict(dtype=np.float16), "float32 or bfloat16"),
    ],
)
def test_what_it_cannot_run_is_refused_in_one_line(skip, options, why):
    policy, sizes = options.pop("policy", POLICY), options
    recurrence, params, carry, x, actions = problem(skip, **sizes)
    with pytest.raises(UserError, match=why) as raised:
        jax.eval_shape(lambda: unrolled(recurrence, params, carry, x, actions, None, policy, True))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("FAST_MEMORY", 1000, "MiB of fast memory"),
        ("ANYWHERE", False, "needs a TPU, not a cpu: use 'auto'"),
    ],
)
def test_it_is_for_tpus_whose_memory_suffices(name, value, why, monkeypatch):
    monkeypatch.setattr(tpu_kernel, name, value)
    with pytest.raises(UserError, match=why):
        unrolled(*problem(F.Previous()), None, POLICY, True)


COMPILE = """
from benchmarks import compiled, layers
from dynskip_jax import functional as F
from dynskip_jax.functional.engine import tpu_kernel

tpu_kernel.ANYWHERE = True
for skip in (F.Previous(), F.Dynamic(5, 0.5)):
    layer = layers.ours(layers.SHAPES["PTB"], skip, implementation="tpu_kernel")
    print(compiled.layer_figures(lambda: layer))
"""


@pytest.mark.slow
def test_it_compiles_for_a_tpu_with_its_gradients():
    if find_spec("libtpu") is None:
        pytest.skip('libtpu is not installed: pip install -e ".[compile]"')
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= pytest.importorskip("benchmarks.compiled", exc_type=ImportError).ENVIRONMENT
    found = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True
    )
    assert found.stdout.count("Figures(") == 2, found.stderr
