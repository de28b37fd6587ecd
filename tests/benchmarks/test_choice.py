"""Check the losses of other choices against reading the text again with each of these choices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from learners import drawn_params, language_modelling, letters

from benchmarks import choice
from benchmarks.choice import Reader
from dynskip_jax import functional as F
from dynskip_jax.nn.initializers import uniform

ROWS, K = 2, 3
GREEDY = F.Policy("greedy")


def whole(pieces, names, axis=1):
    """Concatenate the results of a text's batches along time, or those of sequences along rows."""
    pieces = list(pieces)
    return [
        np.concatenate([np.asarray(getattr(p, name)) for p in pieces], axis=axis) for name in names
    ]


def stream_reader(learner, params):
    """Return a function (row, changes) -> -log p of each word of stream `row` of dev, read word by
    word.

    `changes` maps steps to the k to choose there; the model makes all other choices anew.
    """
    model, tokens = learner.model(params), learner.task.tokens("dev")
    length = -(-len(tokens) // ROWS)
    inputs = np.concatenate([[learner.task.end_of_line], tokens[:-1]])

    @jax.jit
    def step(token, target, carry, k):
        read = dict(policy=GREEDY, deterministic=True, return_carry=True)
        _, output = model(token[None, None], initial_carry=carry, **read)
        actions = [decision.action for decision in output.decisions]
        actions[1] = jnp.where(k > 0, k, actions[1])
        carry, output = model(token[None, None], initial_carry=carry, actions=actions, **read)
        return carry, -jax.nn.log_softmax(output.logits[0, 0])[target]

    def nll_of_stream(row, changes):
        carry, found = model.initialize_carry(1, jax.random.key(0)), []
        for t in range(row * length, min((row + 1) * length, len(tokens))):
            k = jnp.int32(changes.get(t - row * length, 0))
            carry, nll = step(jnp.int32(inputs[t]), jnp.int32(tokens[t]), carry, k)
            found.append(float(nll))
        return np.array(found)

    return nll_of_stream


@functools.cache
def language():
    learner = language_modelling(letters(6), mix=0.7)
    params = drawn_params(learner, 5, scale=1.5)
    return learner, params, stream_reader(learner, params)


def test_every_choice_of_a_language_model_replaced():
    """Each model reads the text separately. Its choices then replace those of the first model."""
    learner, params, nll_of_stream = language()
    other = drawn_params(learner, 4, scale=1.5)
    reader = Reader(learner, [params, other], GREEDY, "dev", ROWS)
    found = list(choice.every_choice(reader, 1, constants=(1, 3)))
    losses, counts = (
        sum(np.asarray(getattr(p, name)) for p in found) for name in ("losses", "counts")
    )
    (actions,) = whole(found, ("actions",))
    assert counts.sum() == len(learner.task.tokens("dev"))
    for row in range(ROWS):
        steps = range(int(counts[row]))
        ways = {
            0: {},
            2: dict(zip(steps, actions[1 - row, :, 0], strict=False)),
            3: dict(zip(steps, actions[row, :, 1], strict=False)),
            4: dict.fromkeys(steps, 1),
            5: dict.fromkeys(steps, 3),
        }
        for way, changes in ways.items():
            np.testing.assert_allclose(
                losses[row, way], nll_of_stream(row, changes).sum(), rtol=1e-5
            )
        assert losses[row, 1] not in np.delete(losses[row], 1)  # choices at random
    counted = actions[:, : int(counts.min())]
    assert np.ptp(counted[..., 0]) and np.ptp(counted, axis=-1).any()


# --- Words that are copied ---


def nll_of_copies(weights, copies, softmax, targets):
    """Compute -log Σ_k π_k p_k of each target in float64, with `weights` as π."""
    gate, truth = 1 / (1 + np.exp(-copies.gates)), targets[..., None]
    p = np.take_along_axis(softmax, truth, axis=-1)
    copied = np.where(copies.words == F.NO_WORD, p, (1 - gate) * p + gate * (copies.words == truth))
    return -np.log((weights * copied).sum(axis=-1))


def test_copied_words_by_hand():
    sure, rows = uniform(4.0), 3
    cell = dict(kernel_init=sure, recurrent_kernel_init=sure, agent_init=F.Initializers(sure))
    how = dict(model={"copy": "expected"}, init_scale=4.0, cell=cell)
    learner = language_modelling(
        letters(6), skips=("lstm", F.Dynamic(K, 0.0, agent="content")), **how
    )
    several = [drawn_params(learner, seed, scale=4.0) for seed in (3, 4)]
    found = choice.copied_words(Reader(learner, several, GREEDY, "dev", rows))
    counts, losses, of_each, likeliest = whole(found, ("counts", "losses", "of_each", "likeliest"))
    # Read each stream of dev in one piece.
    length = -(-len(learner.task.tokens("dev")) // rows)
    (batch,) = learner.task.windows("dev", rows, length)
    models = [learner.model(each) for each in several]
    carries = [model.initialize_carry(rows, jax.random.key(0)) for model in models]
    how = dict(policy=GREEDY, rngs=jax.random.key(1), deterministic=True)
    pairs = zip(models, carries, strict=True)
    outputs = [compiled(model)(batch.inputs, initial_carry=carry, **how) for model, carry in pairs]
    copies, of_other = (jax.tree.map(lambda x: np.asarray(x, float), out.copies) for out in outputs)
    softmax, mask = np.asarray(jax.nn.softmax(outputs[0].of_softmax), float), batch.mask
    shown = slice(0, length)
    np.testing.assert_array_equal(counts[:, shown], mask)
    assert counts.sum() == len(learner.task.tokens("dev"))

    own, one = copies.weights, np.eye(K)
    ways = [own, np.full_like(own, 1 / K), np.roll(own, -1, axis=0), of_other.weights]
    ways += [*(np.broadcast_to(one[k], own.shape) for k in range(K)), one[own.argmax(axis=-1)]]
    found = np.concatenate([losses, of_each, likeliest[..., None]], axis=-1)
    for way, weights in enumerate(ways):
        expected = nll_of_copies(weights, copies, softmax, batch.targets)
        np.testing.assert_allclose(found[:, shown, way][mask], expected[mask], rtol=1e-4, atol=1e-5)
    means = losses[counts].mean(axis=0)
    assert min(abs(one - other) for one, other in itertools.combinations(means, 2)) > 1e-3


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_margin_knows_that_neighbouring_steps_are_alike(rho):
    """An AR(1) series has a mean with (1 + ρ) / (1 - ρ) times the variance of independent steps."""
    rng = np.random.default_rng(1)
    steps = 20_000
    noise = rng.normal(size=steps)
    series = np.zeros(steps)
    for t in range(steps):
        series[t] = noise[t] + (rho * series[t - 1] if t else 0.0)
    _, margin = choice.paired_gain(series, np.zeros(steps))
    expected = 1.96 * np.sqrt((1 + rho) / (1 - rho) / (1 - rho**2) / steps)
    # Blocks of 50 steps miss a part of the correlation, here at most 20 % of the margin.
    assert 0.8 * expected < margin < 1.2 * expected


def test_a_probe_finds_what_there_is_to_learn():
    """The signs of the first two inputs select the k whose loss is 0.1; all others cost 1 to 2."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(3000, 6))
    losses = rng.uniform(1, 2, size=(3000, 4))
    right = 2 * (seen[:, 0] > 0) + (seen[:, 1] > 0)
    losses[np.arange(3000), right] = 0.1
    found = choice.probe(seen, losses[:2100], seen[2100:])
    assert np.mean(found == right[2100:]) > 0.75
