"""Check arguments at the limits of layers and models, and noise where a sequence begins within a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.nn import SkipLSTM


def layer(**options):
    return drawn(lambda: SkipLSTM(2, 3, skip=F.Dynamic(5), rngs=nnx.Rngs(0), **options))


def test_zoneout_says_nothing_of_the_choices_of_a_sequence_that_begins_in_the_same_row():
    begins, rows = 4, 2000
    even = layer(zoneout=0.5)
    for name in ("w_out", "b_out"):
        weight = getattr(even.cells[0].agent, name)
        weight[...] = jnp.zeros_like(weight[...])
    carry = even.initialize_carry(rows, jax.random.key(0))
    ids = np.repeat(np.array([[0] * begins + [1] * 4]), rows, axis=0)
    output = compiled(even)(np.ones((rows, 8, 2), np.float32), segment_ids=ids, initial_carry=carry)
    steps = np.broadcast_to(np.arange(8), (rows, 8))
    kept = np.asarray(compiled(F.zoneout)(carry[0].key[:, None], steps, (0.5, 0.5), 3)[0])
    actions = np.asarray(output.decisions[0].action)
    for step in range(8):
        first = actions[:, step] == 1
        for unit in range(3):
            stays = kept[:, begins, unit] == 1
            # Both are binomial fractions of about 1,000 rows, so 0.07 is four standard deviations.
            assert abs(first[stays].mean() - first[~stays].mean()) < 0.07


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("dtype", "time", "reverse"),
    and_slow(
        [
            (*case, reverse)
            for case in (("uint8", 256), ("uint8", 300), ("int8", 128), ("int16", 20))
            for reverse in (False, True)
        ],
        lambda dtype, time, reverse: (time, reverse) in ((300, False), (128, True)),
    ),
)
def test_lengths_of_any_dtype(dtype, time, reverse):
    x = np.random.default_rng(0).normal(size=(2, time, 2)).astype(np.float32)
    lengths = np.array([17, 10])
    run = compiled(layer(reverse=reverse))
    told = dict(deterministic=True, return_carry=True)
    (carry,), found = run(x, seq_lengths=lengths.astype(dtype), **told)
    _, expected = run(x, seq_lengths=lengths, **told)
    np.testing.assert_array_equal(carry.step, lengths)
    np.testing.assert_array_equal(found.h, expected.h)


def test_traced_lengths_beyond_the_end_count_as_the_end():
    stack = drawn(lambda: SkipLSTM(2, 3, skip=F.Dynamic(3), bidirectional=True, rngs=nnx.Rngs(0)))
    stack.eval()
    x = jax.device_put(np.random.default_rng(0).normal(size=(2, 5, 2)).astype(np.float32))
    read = nnx.jit(lambda stack, lengths: stack(x, seq_lengths=lengths))
    found, expected = read(stack, np.array([7, 5])), read(stack, np.array([5, 5]))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_cell_in_evaluation_drops_nothing_whatever_its_carry_holds():
    cell = layer(recurrent_dropout=0.5).cells[0]
    x = np.ones((4, 2), np.float32)
    dropping = cell.initialize_carry(x.shape, jax.random.key(0))
    assert dropping.recurrent_mask is not None
    cell.eval()
    step = compiled(cell)
    carry, _ = step(dropping, x)
    found = step(carry, x)[1]
    expected = step(step(dropping._replace(recurrent_mask=None), x)[0], x)[1]
    np.testing.assert_array_equal(found, expected)
    assert jax.tree.structure(carry) == jax.tree.structure(dropping)


def test_a_layer_draws_the_mask_that_a_carry_lacks():
    dropping, x, key = layer(recurrent_dropout=0.5), np.ones((4, 5, 2), np.float32), jax.random.key(1)
    run = compiled(dropping)
    (start,), _ = run(x[:, :1], deterministic=True, return_carry=True)
    assert start.recurrent_mask is None and start.key is None
    options = dict(policy=F.Policy("greedy"), return_carry=True)
    (end,), found = run(x, initial_carry=[start], rngs=key, **options)
    np.testing.assert_array_equal(found.h, run(x, initial_carry=[start], rngs=key, **options)[1].h)
    other = run(x, initial_carry=[start], rngs=jax.random.key(2), **options)[1]
    for without in (other, run(x, initial_carry=[start], deterministic=True)):
        assert not np.allclose(found.h, without.h)
    assert end.recurrent_mask is None
    with pytest.raises(UserError, match="this layer draws"):
        run(x, initial_carry=[start], policy=F.Policy("greedy"))


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (F.Policy("soft", temperature=0.0), r"a temperature \(τ\) lies above 0, got 0.0"),
        (F.Policy("soft", temperature=jnp.float32("nan")), r"a temperature \(τ\) lies above 0"),
        (F.Policy("soft", temperature=jnp.ones((2, 1))), r"a single number, got float32 \(2, 1\)"),
        (F.Policy("greedy", mix=jnp.full(3, 0.5)), r"mix \(λ\) is a single number, got float32 \(3,\)"),
        (F.Policy("greedy", mix=1.5), r"mix \(λ\) lies between 0 and 1, got 1.5"),
    ],
)
def test_a_policys_numbers_are_single_and_within_their_range(policy, says):
    with pytest.raises(UserError, match=says):
        layer()(jax.device_put(np.ones((2, 4, 2), np.float32)), policy=policy, rngs=jax.random.key(0))


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    "given",
    [
        dict(seq_lengths=4),
        dict(seq_lengths=[4, 4]),
        dict(seq_lengths=jnp.array([4, 4, 4])),
        dict(policy=F.Policy("greedy", mask=[True] * 5)),
    ],
    ids=["a number", "a list", "too many", "a list as mask"],
)
@pytest.mark.parametrize("axes", [(), (2, 3)])
def test_what_does_not_fit_several_batch_axes_is_said(given, axes):
    plain = layer()
    plain.eval()
    with pytest.raises(UserError):
        plain(np.ones((*axes, 4, 2), np.float32), **given)
