"""Check dynamic evaluation against a loop over segments, and against a fixed model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import drawn_params, language_modelling, letters, together

from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks.dynamic_evaluation import DynamicEvaluation

STEPS, EPSILON, RATE, DECAY = 3, 2e-3, 0.02, 0.2
KEYS = jax.random.split(jax.random.key(5), 2)


def evaluation_of(skip):
    """Return dynamic evaluation of two models, their learner, and the parameters of each."""
    corpus = letters(64, dev=8, test=2)  # 320 tokens (100 rows of up to four), 40 and 10 tokens
    options = dict(num_steps=5, init_scale=0.5, cell={"kernel_init": uniform(1.0)})
    learner = language_modelling(corpus, (0, 1), skips=(skip,), model={"dropout": 0.3}, **options)
    params = [drawn_params(learner, seed) for seed in range(2)]
    return (
        DynamicEvaluation(learner, together(*params), KEYS, learner.policy(), STEPS),
        learner,
        params,
    )


def gradient_of(learner):
    """Return a compiled function: the gradient of a segment's mean loss, the next carry and the
    loss.
    """

    @jax.jit
    def gradient(params, carry, inputs, targets, mask):
        def loss(params):
            model = learner.model(params)
            end, output = model(inputs, initial_carry=carry, deterministic=True, return_carry=True)
            nll = -jnp.take_along_axis(jax.nn.log_softmax(output.logits), targets[..., None], -1)[
                ..., 0
            ]
            return (nll * mask).sum() / mask.sum(), (end, (nll * mask).sum())

        return jax.grad(loss, has_aux=True)(params)

    return gradient


def leaves_of(tree):
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]


def scale_of(learner, params, gradient):
    """Return the root mean squares of the gradients of train, of each array, and their mean over
    elements.
    """
    carry = learner.model(params).initialize_carry(100, jax.random.key(0))
    squares, read = [0.0] * len(leaves_of(params)), list(learner.task.windows("train", 100, STEPS))
    for segment in read:
        grads, (carry, _) = gradient(params, carry, *segment[:3])
        squares = [s + g**2 for s, g in zip(squares, leaves_of(grads), strict=True)]
    rms = [np.sqrt(s / len(read)) for s in squares]
    return rms, sum(r.sum() for r in rms) / sum(r.size for r in rms)


def by_hand(learner, params):
    """Return one model's perplexity of test: a call for each segment, and updates in float64."""
    gradient, tree, trained = gradient_of(learner), jax.tree.structure(params), leaves_of(params)
    rms, mean = scale_of(learner, params, gradient)
    now, total = list(trained), 0.0
    carry = learner.model(params).initialize_carry(1, jax.random.key(0))
    for segment in learner.task.windows("test", 1, STEPS):
        params = jax.tree.unflatten(tree, [jnp.asarray(leaf, jnp.float32) for leaf in now])
        grads, (carry, nll) = gradient(params, carry, *segment[:3])
        total += float(nll)
        for i, g in enumerate(leaves_of(grads)):
            back = np.minimum(DECAY * rms[i] / mean, 1) * (trained[i] - now[i])
            now[i] = now[i] - RATE * g / (rms[i] + EPSILON) + back
    return np.exp(total / len(learner.task.tokens("test")))


def test_the_scale_of_gradients_is_their_root_mean_square_on_train():
    dynamic, learner, params = evaluation_of("lstm")
    scale, gradient = dynamic.gradient_scale(), gradient_of(learner)
    for seed, own in enumerate(params):
        rms, mean = scale_of(learner, own, gradient)
        for ours, expected in zip(leaves_of(scale.rms), rms, strict=True):
            np.testing.assert_allclose(ours[seed], expected, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(scale.mean[seed], mean, rtol=1e-4)


@pytest.mark.slow
def test_it_is_a_loop_over_segments(monkeypatch):
    monkeypatch.setattr("dynskip_jax.tasks.dynamic_evaluation._EPSILON", EPSILON)
    dynamic, learner, params = evaluation_of("dynamic:3")
    scale = dynamic.gradient_scale()
    found = dynamic.perplexity("test", scale, learning_rate=RATE, decay=DECAY)
    np.testing.assert_allclose(found, [by_hand(learner, each) for each in params], rtol=1e-4)
    # The parameters have moved, and the effect is far larger than the tolerance.
    still = learner.evaluate(together(*params), "test", KEYS, batch_size=1)["test_perplexity"]
    assert (abs(np.log(found / still)) > 0.003).all()


def test_parameters_that_do_not_change_give_the_perplexity_of_evaluation():
    dynamic, learner, params = evaluation_of("lstm")
    done = []
    scale = dynamic.gradient_scale(done.append)
    found = dynamic.perplexity("dev", scale, learning_rate=0.0, decay=0.7, advance=done.append)
    expected = learner.evaluate(together(*params), "dev", KEYS, batch_size=1)["dev_perplexity"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert sum(done) == pytest.approx(2)
