"""Check dynamic evaluation against a loop over segments and a fixed model, and on a text that repeats."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import drawn_params, language_modelling, together

from dynskip_jax.data import make_corpus
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks.dynamic_evaluation import DynamicEvaluation

STEPS, EPSILON = 3, 2e-3
KEYS = jax.random.split(jax.random.key(5), 2)


def corpus_of(test):
    """Return a corpus of random letters in lines of nine, with the lines `test` as its test split."""
    rng = np.random.default_rng(0)
    lines = {split: [" ".join(rng.choice(list("abcdef"), 9)) for _ in range(n)] for split, n in SIZES.items()}
    return make_corpus("letters", lines | {"test": test}, "here")


SIZES = {"train": 32, "dev": 4}  # 320 tokens (100 rows of up to four) and 40 tokens
TEXT = ["a b c d e f a b c d"]


def learner_of(skip, test=TEXT, **options):
    return language_modelling(
        corpus_of(test),
        (0, 1),
        skips=(skip,),
        num_steps=5,
        init_scale=0.5,
        model={"dropout": 0.3},  # in training only
        cell={"kernel_init": uniform(1.0)},
        **options,
    )


def params_of(learner):
    return together(*(drawn_params(learner, seed) for seed in range(2)))


def segments_by_hand(tokens, first_token, rows):
    """Return (inputs, targets, mask) of each segment of `tokens` in `rows` streams."""
    length = -(-len(tokens) // rows)
    steps = -(-length // STEPS) * STEPS
    sheets = np.zeros((3, rows, steps), int)
    shifted = [first_token, *tokens[:-1]]
    for place, (before, token) in enumerate(zip(shifted, tokens, strict=True)):
        sheets[:, place // length, place % length] = before, token, 1
    return [sheets[:, :, start : start + STEPS] for start in range(0, steps, STEPS)]


def by_hand(learner, learning_rate, decay):
    """Return a function from one seed's parameters to the perplexity of test.

    It calls the model once for each segment and updates the parameters in float64.
    """
    corpus = learner.task.corpus
    eos = corpus.vocabulary.index["<eos>"]

    def start(params, streams):
        return learner.task.initial_carry(learner.model(params), streams, jax.random.key(0))

    @jax.jit
    def gradient(params, carry, inputs, targets, mask):
        def loss(params):
            model = learner.model(params)
            end, output = model(inputs, initial_carry=carry, deterministic=True, return_carry=True)
            nll = -jnp.take_along_axis(jax.nn.log_softmax(output.logits), targets[..., None], -1)[..., 0]
            return (nll * mask).sum() / mask.sum(), (end, (nll * mask).sum())

        return jax.grad(loss, has_aux=True)(params)

    def perplexity(params):
        leaves, tree = jax.tree.flatten(params)
        trained = [np.asarray(leaf, float) for leaf in leaves]
        squares = [np.zeros_like(leaf) for leaf in trained]
        read = segments_by_hand(corpus.train, eos, 100)
        carry = start(params, 100)
        for segment in read:
            grads, (carry, _) = gradient(params, carry, *map(jnp.asarray, segment))
            new = [np.asarray(g, float) ** 2 for g in jax.tree.leaves(grads)]
            squares = [s + g for s, g in zip(squares, new, strict=True)]
        rms = [np.sqrt(s / len(read)) for s in squares]
        mean = sum(r.sum() for r in rms) / sum(r.size for r in rms)

        now, total = list(trained), 0.0
        carry = start(params, 1)
        for segment in segments_by_hand(corpus.test, eos, 1):
            params = jax.tree.unflatten(tree, [jnp.asarray(leaf, jnp.float32) for leaf in now])
            grads, (carry, nll) = gradient(params, carry, *map(jnp.asarray, segment))
            total += float(nll)
            for i, g in enumerate(map(partial(np.asarray, dtype=float), jax.tree.leaves(grads))):
                back = np.minimum(decay * rms[i] / mean, 1) * (trained[i] - now[i])
                now[i] = now[i] - learning_rate * g / (rms[i] + EPSILON) + back
        return np.exp(total / len(corpus.test))

    return perplexity


@pytest.mark.slow
def test_it_is_a_loop_over_segments():
    learner = learner_of("dynamic:3")
    params = params_of(learner)
    dynamic = DynamicEvaluation(learner, params, KEYS, num_steps=STEPS)
    found = dynamic.perplexity(
        "test", dynamic.gradient_scale(), learning_rate=0.02, decay=0.2, epsilon=EPSILON
    )
    perplexity = by_hand(learner, 0.02, 0.2)
    expected = [perplexity(jax.tree.map(partial(jnp.take, indices=seed, axis=0), params)) for seed in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The parameters have moved, and the effect is far larger than the tolerance.
    still = learner.evaluate(params, "test", KEYS, batch_size=1)["test_perplexity"]
    assert (abs(np.log(found / still)) > 0.01).all()


@pytest.fixture(scope="module")
def unchanged():
    """Return the perplexity at rate 0, that of evaluation, the calls of `advance`, and the part counts."""
    learner = learner_of("lstm")
    params = params_of(learner)
    dynamic = DynamicEvaluation(learner, params, KEYS, num_steps=STEPS)
    calls = []
    scale = dynamic.gradient_scale(lambda: calls.append("train"))
    found = dynamic.perplexity(
        "dev", scale, learning_rate=0.0, decay=0.7, advance=lambda: calls.append("dev")
    )
    expected = learner.evaluate(params, "dev", KEYS, batch_size=1)["dev_perplexity"]
    return found, expected, calls, [dynamic.num_parts(split) for split in ("train", "dev")]


def test_parameters_that_do_not_change_give_the_perplexity_of_evaluation(unchanged):
    found, expected, calls, parts = unchanged
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert [calls.count(split) for split in ("train", "dev")] == parts
