"""Check that no loop copies an array that has a row for each step: such a layer is quadratic in T.

XLA's CPU backend copies an array that a loop writes while its old version is still read. The tests
look for these copies in the bodies of the compiled loops, so they need no clock.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from marks import and_slow
from recurrences import TIME_SKIPS

from dynskip_jax import functional as F

TIME, INPUT, HIDDEN = 61, 3, 5
# Kernels that are slow are compiled several times faster; what loops copy is decided before.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
FIXED = F.Fixed(3)
DYNAMIC = F.Dynamic(3)
# Of the ways in which a step reads and writes states, one each; the other skips are slow tests.
USUAL = {"fixed", "followed", "dynamic-both", "skip-rnn", "log-dynamic", "sparse", "lstm-jump"}


def copies(recurrence, mode="sample", batch=2, zoneout=False, **arrays):
    """Return the copies of arrays with a row for each step, in the loops of a layer's gradient."""

    def problem(key):
        zeros = F.zero_state(recurrence.transition, (batch, HIDDEN))
        carry = F.initial_carry(jax.random.split(key, batch), recurrence, zeros, INPUT)
        params = recurrence.init(key, INPUT, HIDDEN, agent_features=4, init=F.Initializers())
        mask = [jnp.ones((batch, TIME, HIDDEN))] * len(zeros) if zoneout else None
        mask = mask and recurrence.transition.state(*mask)
        return params, carry, jnp.ones((batch, TIME, INPUT)), mask

    def loss(params, x, carry, zoneout_mask, arrays):
        policy = F.Policy(mode, temperature=1.0)
        options = dict(policy=policy, zoneout_mask=zoneout_mask, implementation="fused")
        _, out = F.unroll(params, carry, x, recurrence, **options, **arrays)
        return jnp.sum(out.h)

    params, carry, x, mask = jax.eval_shape(problem, jax.random.key(0))
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    text = gradient.lower(params, x, carry, mask, arrays).compile(QUICK).as_text()
    bodies = "|".join(re.escape(body) for body in set(re.findall(r"body=%?([\w.-]+)", text)))
    loops = re.findall(rf"^%?(?:{bodies}) .*?^}}$", text, re.M | re.S)
    assert loops
    found = re.findall(r"= (f\d+\[(\d+)[\d,]*\])\S* copy\(", "\n".join(loops))
    return [shape for shape, rows in found if int(rows) >= TIME]


def everywhere(skip):
    """Return the skip with λ = 1, where it has one."""
    has_mix = any(field.name == "mix" and field.init for field in dataclasses.fields(skip))
    return dataclasses.replace(skip, mix=1.0) if has_mix else skip


@pytest.mark.parametrize("name", and_slow(TIME_SKIPS, USUAL.__contains__))
def test_no_skip(name):
    """One sequence, because XLA makes a slice of a gather for it."""
    transition = F.SkimLSTM(2) if name == "skim-rnn" else F.LSTM()
    lengths = jnp.full(1, TIME - 1)
    assert not copies(
        F.Recurrence(everywhere(TIME_SKIPS[name]), transition), batch=1, seq_lengths=lengths
    )


@pytest.mark.parametrize("skip", [FIXED, F.Fixed(3, 0.5), F.Fixed(1), DYNAMIC, F.Dynamic(3, 0.5)])
@pytest.mark.parametrize("batch", and_slow([1, 2], lambda batch: batch == 2))
def test_no_mixture(skip, batch):
    assert not copies(F.Recurrence(skip), batch=batch)


@pytest.mark.parametrize("kind", [F.IndRNN, F.MinGRU, F.GRU, F.SLSTM, F.FullGateRecurrence])
def test_no_transition(kind):
    assert not copies(F.Recurrence(F.Fixed(3, 0.5), kind()))


@pytest.mark.parametrize(
    "skip",
    and_slow([FIXED, F.Fixed(3, 0.5, first_step="carried"), DYNAMIC], lambda skip: skip == DYNAMIC),
)
@pytest.mark.parametrize("option", ["lengths", "packed", "zoneout", "relaxed"])
def test_no_option(skip, option):
    options = {
        "lengths": dict(seq_lengths=jnp.array([TIME, 7])),
        "packed": dict(segment_ids=jnp.arange(2 * TIME).reshape(2, TIME) // 9),
        "zoneout": dict(zoneout=True),
        "relaxed": dict(mode="soft"),
    }
    assert not copies(F.Recurrence(skip), **options[option])
