"""The documentation's code: it runs, and what it makes trains and has right gradients."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipCell, SkipLayer

ROOT = Path(__file__).parents[1]


def code_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def names_of(page, *codes):
    """What a page's code defines."""
    names = {"__name__": Path(page).stem}
    for code in codes or code_of(page):
        exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture(scope="module")
def own_pieces():
    return names_of("docs/own_pieces.md")


@pytest.fixture(scope="module")
def readme():
    """README's first example, the training itself left out."""
    (training, *_) = code_of("README.md")
    assert len([line for line in training.splitlines() if line.strip()]) <= 40
    return names_of("README.md", training.replace("\ntrain()", "\n# train()"))


def test_the_readmes_stack_runs():
    _, stack = code_of("README.md")
    imports = (
        "import jax\nimport jax.numpy as jnp\nfrom flax import nnx\nfrom dynskip_jax import functional as F\n"
    )
    names = names_of("README.md", imports + stack)
    assert names["out"].h.shape == (8, 20, 128) and len(names["out"].decisions) == 6


def test_the_readmes_example_trains(readme):
    """An epoch of sampled choices."""
    readme["agents"] = dataclasses.replace(readme["agents"], relaxed_epochs=0)
    assert readme["train"](epochs=1) > 0.3  # by chance 0.2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_readmes_agent_solves_its_task_and_a_plain_lstm_does_not(readme, seed):
    def plain(rngs):
        model = readme["Model"](rngs)
        model.layer = SkipLayer(SkipCell(13, 32, F.Previous(), rngs=rngs))
        return model

    assert readme["train"](seed) >= 0.99
    assert readme["train"](seed, make=plain) < 0.95


@pytest.mark.slow
def test_the_page_on_own_models_runs():
    names = names_of("docs/own_model.md")
    assert np.mean(names["losses"][-10:]) < 0.7 * names["losses"][0]
    for second, first in (("replayed", "out"),):
        assert names[first].h.shape == names[second].h.shape == (16, 12, 16)
    assert names["half"].decision.action.max() <= 3
    assert names["message"] == "expected a carry with K = 5 slots, got one with 3"
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(names["gradient"].transition))


def test_a_transition_of_ones_own_trains_in_a_stack(own_pieces):
    errors = own_pieces["errors"]
    assert np.mean(errors[-10:]) < 0.35 * errors[0]


@pytest.mark.parametrize("depth_skip", [F.GatedToOutput(), F.ToInternal()], ids=["output", "internal"])
def test_its_fused_gradients_are_those_of_autodiff(own_pieces, depth_skip):
    for skip in (F.Dynamic(5, 0.5), own_pieces["Farthest"](4, 0.5)):
        with jax.enable_x64(True):
            recurrence = F.Recurrence(skip, own_pieces["MGU"](), depth_skip)
            params = recurrence.init(jax.random.key(0), 4, 6, init=F.Initializers(dtype=jnp.float64))
            x = jax.random.normal(jax.random.key(1), (3, 9, 4))
            below = jax.random.normal(jax.random.key(2), (3, 9, 6))
            zeros = F.zero_state(recurrence.transition, (3, 6), jnp.float64)
            carry = F.initial_carry(jax.random.split(jax.random.key(3), 3), recurrence, zeros)

            def loss(params, implementation, recurrence=recurrence, carry=carry, x=x, below=below):
                settings = dict(below=below, implementation=implementation)
                out = F.unroll(params, carry, x, recurrence, **settings)[1]
                return jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob)

            fused, reference = (
                jax.jit(jax.grad(loss), static_argnums=1)(params, n) for n in ("fused", "reference")
            )
            for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(reference), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
                assert np.abs(a).max() > 0
