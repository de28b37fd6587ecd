"""Check that `dtype=bfloat16` is that of products only: sums and all else are in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx
from jax.extend.core import jaxprs_in_params

from dynskip_jax import functional as F
from dynskip_jax.data.vocabularies import TokenIds
from dynskip_jax.models import LanguageModel, SequenceClassifier, Tagger
from dynskip_jax.nn import CharCNN, SkipCell
from dynskip_jax.nn.base import Linear

CELL_OPTIONS = {"agent_features": 6, "learnable_carry": True, "recurrent_dropout": 0.1}
TOKENS = np.zeros((4, 8), np.int32)
DYNAMIC = F.Dynamic(3, 0.5)


def language_model(rngs, skip, **options):
    options |= dict(tied=True, weight_init=nnx.initializers.zeros)
    return LanguageModel(12, 6, (F.Previous(), skip), **options, rngs=rngs), TOKENS


def classifier(rngs, skip, **options):
    return SequenceClassifier(5, 6, 3, skip, **options, rngs=rngs), TOKENS


def tagger(rngs, skip, **options):
    how = dict(dtype=options["dtype"], rngs=rngs)
    options |= dict(characters=(CharCNN(9, **how),), window=3, embedding_features=4)
    ids = TokenIds(TOKENS, np.ones((4, 8, 5), np.int32), TOKENS, TOKENS[..., None])
    return Tagger(12, 5, 6, skip, **options, rngs=rngs), ids


def floats(tree):
    return {
        str(leaf.dtype)
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }


def matrix_products(jaxpr):
    """Return the dtypes (left, right, result) of all products with a matrix, also in loops."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            # A product with batch axes is attention's weighted mean of states.
            _, batch_axes = equation.params["dimension_numbers"]
            if not any(batch_axes):
                operands = (*equation.invars, *equation.outvars)
                found.add(tuple(str(operand.aval.dtype) for operand in operands))
        for inner in jaxprs_in_params(equation.params):
            found |= matrix_products(inner)
    return found


@pytest.mark.parametrize(
    ("make", "skip"),
    [
        (language_model, DYNAMIC),
        (classifier, DYNAMIC),
        pytest.param(tagger, F.Attention(3, 0.5), marks=pytest.mark.slow),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
@pytest.mark.usefixtures("as_users")
def test_every_product_of_a_loss_and_its_gradient_multiplies_bfloat16_and_sums_in_float32(
    make, skip
):
    for dtype, name in ((None, "float32"), (jnp.bfloat16, "bfloat16")):
        inputs = {}

        def model(dtype=dtype, inputs=inputs):
            options = dict(dropout=0.1, dtype=dtype, cell=CELL_OPTIONS)
            made, inputs["tokens"] = make(nnx.Rngs(0), skip, **options)
            return made

        graphdef, params = nnx.split(nnx.eval_shape(model))

        def loss(params, key, graphdef=graphdef, inputs=inputs):
            out = nnx.merge(graphdef, params)(inputs["tokens"], rngs=key)
            return jnp.sum(out[0]), out

        step = jax.value_and_grad(loss, has_aux=True)
        arguments = params, jax.random.key(0)
        assert matrix_products(jax.make_jaxpr(step)(*arguments).jaxpr) == {(name, name, "float32")}
        assert floats(jax.eval_shape(step, *arguments)) == {"float32"}


@pytest.mark.parametrize(("dtype", "name"), [(None, "bfloat16"), ("float32", "float32")])
def test_a_wider_compute_dtype_widens_the_state(dtype, name):
    options = dict(**CELL_OPTIONS, param_dtype=jnp.bfloat16, dtype=dtype)
    cell = drawn(lambda: SkipCell(3, 8, DYNAMIC, **options, rngs=nnx.Rngs(0)))
    carry = cell.initialize_carry((2, 3), jax.random.key(2))
    x = jnp.ones((2, 3), carry.slots.h.dtype)
    assert floats((carry, jax.eval_shape(lambda carry, x: cell(carry, x), carry, x))) == {name}
    assert floats(nnx.state(cell, nnx.Param)) == {"bfloat16"}


def test_a_linear_layer_returns_the_wider_of_both_dtypes():
    module = Linear(3, 4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    for dtype in (jnp.bfloat16, jnp.float32):
        assert jax.eval_shape(module, jax.ShapeDtypeStruct((2, 3), dtype)).dtype == dtype
