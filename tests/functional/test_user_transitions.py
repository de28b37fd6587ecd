"""Check user-defined transitions: products inside transformations, and declarations."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx
from marks import and_slow
from recurrences import assert_same, problem

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import choose
from dynskip_jax.nn import SkipCell, SkipLSTM


@dataclasses.dataclass(frozen=True)
class Inside(F.LSTM):
    """An LSTM whose products are inside a transformation."""

    transformation: Callable = jax.jit

    def step(self, params, inputs, state, dense, cell_hook=None):
        step = super().step
        return self.transformation(lambda state: step(params, inputs, state, dense))(state)


def twice(step):
    return lambda state: jax.lax.scan(lambda state, _: (step(state), None), state, None, length=2)[
        0
    ]


class Inside3D(F.LSTM):
    """An LSTM whose products have one more axis, as those of several heads with one matrix have."""

    def step(self, params, inputs, state, dense, cell_hook=None):
        def of_heads(w, x, *addends, **how):
            addends = [addend[:, None] if addend.ndim > 1 else addend for addend in addends]
            return jax.tree.map(lambda y: y[:, 0], dense(w, x[:, None], *addends, **how))

        return super().step(params, inputs, state, of_heads, cell_hook)


OUT_OF_REACH = [
    Inside3D(),
    *(Inside(transformation=each) for each in (jax.jit, jax.checkpoint, twice)),
]


@pytest.mark.parametrize("transition", and_slow(OUT_OF_REACH, lambda t: t in OUT_OF_REACH[:2]))
def test_products_that_are_out_of_reach_take_the_reference_with_a_warning(
    double_precision, transition
):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5), transition)
    with pytest.warns(UserWarning, match="Inside.*.step calls dense inside") as caught:
        assert_same(recurrence, *problem(recurrence))
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    params, carry, x, _ = problem(recurrence)
    F.unroll(params, carry, x, recurrence, implementation="reference")


@pytest.mark.parametrize(
    "changed", [lambda b: 2 * b, lambda b: b * b, lambda b: b + 1], ids=["2b", "b²", "b+1"]
)
def test_a_narrow_vector_that_a_step_computes_with(changed):
    """Regression: its gradient was as wide as the sum, and the fused unroll refused to
    differentiate.
    """

    class Changed(F.LSTM):
        def step(self, params, inputs, state, dense, cell_hook=None):
            return super().step(
                params._replace(b=changed(params.b)), inputs, state, dense, cell_hook
            )

    def gradient(implementation):
        def make():
            how = dict(param_dtype=jnp.bfloat16, dtype=jnp.float32, implementation=implementation)
            return SkipLSTM(3, 4, transition=Changed(), **how, rngs=nnx.Rngs(0))

        definition, state, others = nnx.split(drawn(make), nnx.Param, ...)
        total = lambda state: jnp.sum(nnx.merge(definition, state, others)(jnp.ones((2, 5, 3))).h)
        return jax.jit(jax.grad(total))(state)

    gradients = gradient("fused"), gradient("reference")
    for fused, reference in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert fused.dtype == reference.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            *(np.asarray(leaf, np.float32) for leaf in (fused, reference)), rtol=0.1, atol=0.02
        )


def test_products_of_one_unit_are_not_taken_for_those_inside_transformations():
    """Regression: with hidden size 1, a GRU warned and ran the reference."""
    layer = drawn(
        lambda: SkipLSTM(2, 1, skip=F.Dynamic(3, 0.5), transition=F.GRU(), rngs=nnx.Rngs(0))
    )
    # A warning would be an error.
    jax.eval_shape(lambda: layer(jnp.ones((3, 4, 2)), rngs=jax.random.key(0)).h)


def test_what_a_transition_does_not_declare_is_said():
    with pytest.raises(TypeError, match="set averages = 'own'"):
        type("Wrong", (F.Transition,), {"mix_states": F.SLSTM.mix_states})
    with pytest.raises(TypeError, match="return log π of the choice in `trace`"):
        type("Own", (F.TimeSkip,), {"num_choices": 2, "init": F.Dynamic.init})(2)
    methods = {"state": F.LSTMState, "init": lambda _, *sizes: F.LSTM().init(*sizes)}
    bare = type("Bare", (F.Transition,), methods)()
    with pytest.raises(UserError, match=r"name them in Bare.recurrent"):
        SkipCell(2, 3, transition=bare, weight_dropout=0.5, rngs=nnx.Rngs(0))
    with pytest.raises(
        UserError, match="unknown gate_fn 'sigmoids': use a function or sigmoid, tanh, relu"
    ):
        F.LSTM(gate_fn="sigmoids")


@dataclasses.dataclass(frozen=True)
class Coin(F.TimeSkip):
    """A skip that tosses a coin for State(t-1) or State(t-2)."""

    num_choices = 2

    def choose(self, params, inputs, observation, skip_state, mode):
        logits = jnp.zeros((*inputs.step.shape, 2))
        return F.Choice(slot=choose(logits, inputs.noise)), skip_state


def test_an_own_skip_that_samples_declares_only_the_number_of_its_options():
    own = Coin(2)
    recurrence = F.Recurrence(own)
    params, carry, x, _ = problem(recurrence, np.float32)
    for implementation in ("fused", "reference"):
        for policy, known in ((F.Policy("sample"), {1, 2}), (F.Policy("greedy"), {1})):
            options = dict(policy=policy, implementation=implementation)
            _, out = F.unroll(params, carry, x, recurrence, **options)
            assert {*np.asarray(out.decision.action).ravel().tolist()} == known
    assert own.is_stochastic and own.draws("sample", False) and own.draws("gumbel_softmax", False)
    assert not own.draws("greedy", False) and not own.draws("sample", True)
    assert [own.differentiable(mode, False) for mode in ("sample", "greedy", "soft")] == [0, 0, 1]
    assert not (own.has_agent or own.has_distribution)
