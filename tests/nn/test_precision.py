"""Check that with `dtype=bfloat16` products multiply bfloat16, and sums and all else are in float32."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import compiled, drawn
from flax import nnx
from jax.extend.core import jaxprs_in_params
from learners import classification, language_modelling, scheduled_of
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data import Examples, make_corpus
from dynskip_jax.nn import SkipCell, SkipLayers, linear
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.optimizer import make_optimizer

OBJECTIVE = AgentSettings(entropy_coef=0.01)
CELL_OPTIONS = {"agent_features": 6, "learnable_carry": True, "recurrent_dropout": 0.1}
BATCH, TIME = 10, 8
SYMBOLS = np.random.default_rng(0).integers(5, size=(400, TIME)).astype(np.int32)
# A language that can be learned: a word is most often followed by the next letter, else by a random one.
STEPS = np.where(
    np.random.default_rng(1).random(4000) < 0.8, 1, np.random.default_rng(2).integers(12, size=4000)
)
WORDS = np.array(list("abcdefghijkl"))[np.cumsum(STEPS) % 12].reshape(-1, 20)
LINES = [" ".join(row) for row in WORDS]
CORPUS = make_corpus("letters", dict.fromkeys(("train", "dev", "test"), LINES), "here")


def words(skip, dtype, **options):
    return language_modelling(
        CORPUS,
        skips=("lstm", skip),
        mix=0.5 if ":" in skip else None,
        batch_size=BATCH,
        num_steps=TIME,
        model=dict(dropout=0.1, dtype=dtype, **CELL_OPTIONS),
        objective=OBJECTIVE,
        **options,
    )


def symbols(skip, dtype, **options):
    return classification(
        {"train": Examples(SYMBOLS, SYMBOLS[:, -1])},  # the label is the last symbol: soon learned
        skip=skip,
        mix=0.5 if ":" in skip else None,
        num_symbols=5,
        num_classes=5,
        batch_size=BATCH,
        cell=CELL_OPTIONS,
        model=dict(dropout=0.1, dtype=dtype),
        objective=OBJECTIVE,
        **options,
    )


def batches_of(task, epoch=0):
    """Return one seed's batches of an epoch."""
    return [
        batch if task.batch_axis is None else jax.tree.map(lambda leaf: leaf[0], batch)
        for batch in task.train_batches(epoch)
    ]


def loss_of(task):
    scheduled, keys = scheduled_of(task), jax.random.split(jax.random.key(2), BATCH)
    # Abstract values suffice, because only dtypes are checked.
    params = jax.eval_shape(task.init, jax.random.key(0))
    carry = jax.eval_shape(task.initial_carry, params, jax.random.key(1))
    return lambda *arguments: task.loss(*arguments, scheduled), (params, carry, batches_of(task)[0], keys)


def matrix_products(jaxpr):
    """Return the dtypes (left, right, result) of all products with a matrix, also in loops and calls."""
    found = set()
    for equation in jaxpr.eqns:
        # A product with batch axes is attention's weighted mean of states, not a product with a matrix.
        if equation.primitive.name == "dot_general" and not any(equation.params["dimension_numbers"][1]):
            operands = (*equation.invars, *equation.outvars)
            found.add(tuple(str(operand.aval.dtype) for operand in operands))
        for inner in jaxprs_in_params(equation.params):
            found |= matrix_products(inner)
    return found


NAMES = ("lstm", "fixed:2", "attention:3", "dynamic:3")


def tasks(*by_default):
    cases = [(make, model) for make in (words, symbols) for model in NAMES]
    return pytest.mark.parametrize(
        ("make", "model"), and_slow(cases, lambda make, model: (make, model) in by_default)
    )


@tasks((words, "dynamic:3"))
def test_every_product_multiplies_bfloat16_and_sums_in_float32(make, model):
    for dtype, name in ((None, "float32"), (jnp.bfloat16, "bfloat16")):
        loss, arguments = loss_of(make(model, dtype))
        assert matrix_products(jax.make_jaxpr(loss)(*arguments).jaxpr) == {(name, name, "float32")}


@tasks((symbols, "lstm"))
def test_every_product_of_the_gradient_does_too(make, model):
    loss, arguments = loss_of(make(model, jnp.bfloat16))
    gradient = jax.grad(loss, has_aux=True)
    assert matrix_products(jax.make_jaxpr(gradient)(*arguments).jaxpr) == {
        ("bfloat16", "bfloat16", "float32")
    }


def floats(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@tasks((words, "dynamic:3"))
def test_losses_states_gradients_and_updated_parameters_are_float32(make, model):
    task = make(model, jnp.bfloat16)
    loss, arguments = loss_of(task)
    optimizer = make_optimizer("adam")

    def step(params, *others):
        (value, (carry, sums)), grads = jax.value_and_grad(loss, has_aux=True)(params, *others)
        updates, state = optimizer.update(grads, optimizer.init(params), params)
        return value, carry, sums, grads, state, optax.apply_updates(params, updates)

    assert floats(jax.eval_shape(step, *arguments)) == {"float32"}


@pytest.mark.parametrize("model", and_slow(NAMES, lambda model: model == "dynamic:3"))
def test_the_layers_outputs_are_float32(model):
    skip = F.parse_time_skip(model, mix=0.5) if ":" in model else F.Previous()
    cell = drawn(lambda: SkipCell(3, 8, skip, **CELL_OPTIONS, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype(np.float32)
    carry, out = compiled(SkipLayers([cell]))(x, rngs=jax.random.key(2), return_carry=True)
    flax_carry, h = compiled(nnx.RNN(cell, return_carry=True))(x)
    assert floats((carry, out, flax_carry, h, nnx.state(cell, nnx.Param))) == {"float32"}
    layers = SkipLayers([cell])
    layers.eval()
    greedy = cell.initialize_carry(x[:, 0].shape)
    _, out = compiled(layers)(x, initial_carry=[greedy], return_carry=True)
    np.testing.assert_allclose(compiled(nnx.RNN(cell))(x, initial_carry=greedy), out.h, rtol=1e-5, atol=1e-6)


def test_one_step_by_hand():
    cell = drawn(lambda: SkipCell(3, 8, F.Previous(), dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    carry = cell.initialize_carry((4, 3), jax.random.key(2), nnx.initializers.normal(1.0))
    new, h = compiled(cell)(carry, x)

    def rounded(array):
        return np.asarray(array).astype(jnp.bfloat16).astype(np.float64)

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    products = rounded(x) @ rounded(cell.weights.w_x[...]) + rounded(
        np.asarray(carry.slots.h)[:, 0]
    ) @ rounded(cell.weights.w_h[...])
    g, i, f, o = np.split(products + np.asarray(cell.weights.b[...], np.float64), 4, axis=-1)
    c = np.tanh(g) * sigmoid(i) + np.asarray(carry.slots.c, np.float64)[:, 0] * sigmoid(f)
    np.testing.assert_allclose(np.asarray(new.slots.c)[:, 0], c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h, sigmoid(o) * np.tanh(c), rtol=1e-5, atol=1e-6)


def test_a_wider_compute_dtype_widens_the_state():
    options = lambda: dict(param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    skip = F.Dynamic(3)
    narrow = drawn(lambda: SkipCell(3, 8, skip, **CELL_OPTIONS, **options()))
    wide = drawn(lambda: SkipCell(3, 8, skip, **CELL_OPTIONS, **options(), dtype=jnp.float32))
    for cell, name in ((narrow, "bfloat16"), (wide, "float32")):
        carry = cell.initialize_carry((2, 3), jax.random.key(2))
        assert floats(carry) == {name}
        x = jnp.ones((2, 3), carry.slots.h.dtype)
        assert floats(jax.eval_shape(lambda carry, x, cell=cell: cell(carry, x), carry, x)) == {name}
        assert floats(nnx.state(cell, nnx.Param)) == {"bfloat16"}


def test_example_in_the_docstring_runs():
    result = doctest.testmod(linear)
    assert result.attempted > 0
    assert result.failed == 0
