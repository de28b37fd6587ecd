"""Check that `.train()`, `.eval()` and `nnx.view` set training and evaluation mode on every module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.nn import CharCNN, SkipCell, SkipLayers, SkipLSTM

X = jax.random.normal(jax.random.key(0), (2, 5, 3))


class Model(nnx.Module):
    """A model with Flax's dropout and layers of this library."""

    def __init__(self, rngs):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.layer = SkipLayers([SkipCell(3, 3, F.Dynamic(3), recurrent_dropout=0.5, rngs=rngs)])
        self.stack = SkipLSTM(3, 4, dropout=0.5, rngs=rngs)
        self.characters = CharCNN(5, filters=2, dropout=0.5, rngs=rngs)

    def __call__(self, x):
        h = self.layer(self.dropout(x), rngs=jax.random.key(1)).h
        return self.stack(h, rngs=jax.random.key(2)).h


def modes(model):
    return [module.deterministic for _, module in nnx.iter_modules(model) if hasattr(module, "deterministic")]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_view_sets_every_module_and_leaves_the_model_alone(deterministic):
    model = Model(nnx.Rngs(0))
    set_back = model.train if deterministic else model.eval
    set_back()
    view = nnx.view(model, deterministic=deterministic)
    assert len(modes(view)) >= 4 and set(modes(view)) == {deterministic}
    assert set(modes(model)) == {not deterministic}


def test_two_calls_of_an_evaluating_view_agree():
    model = Model(nnx.Rngs(0))
    view = nnx.view(model, deterministic=True)
    model.eval()
    np.testing.assert_array_equal(compiled(view)(X), compiled(model)(X))
    assert jnp.isfinite(compiled(view)(X)).all()
