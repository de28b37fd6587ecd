"""Check the losses of other choices against reading the text again with each of these choices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from learners import CLASSES, classification, drawn_params, language_modelling, letters, symbols

from dynskip_jax import functional as F
from dynskip_jax.data import Examples
from dynskip_jax.errors import UserError
from dynskip_jax.tasks.interventions import choices_of, chosen, policy_interventions, single_interventions

ROWS, K = 2, 3


def params_of(learner):
    return drawn_params(learner, 3)


def pieces(learner, params, **how):
    policy = F.Policy("greedy")
    return list(single_interventions(learner, params, policy, "dev", rows=ROWS, **how))


@pytest.fixture(scope="module")
def language():
    """Return a learner, its parameters, and a function that computes -log p of a stream word by word."""
    learner = language_modelling(letters(6), mix=0.7)
    params = params_of(learner)
    model = learner.model(params)
    tokens = learner.task.tokens("dev")
    length = -(-len(tokens) // ROWS)
    inputs = np.concatenate([[learner.task.end_of_line], tokens[:-1]])

    @jax.jit
    def step(token, target, carry, k):
        """Read `token` with `k` as the top layer's choice, or the greedy one if `k` is 0.

        The result is the new carry and -log p of `target`.
        """
        read = dict(policy=F.Policy("greedy"), deterministic=True, return_carry=True)
        _, output = model(token[None, None], initial_carry=carry, **read)
        actions = [decision.action for decision in output.decisions]
        actions[1] = jnp.where(k > 0, k, actions[1])
        carry, output = model(token[None, None], initial_carry=carry, actions=actions, **read)
        return carry, -jax.nn.log_softmax(output.logits[0, 0])[target]

    def nll_of_stream(row, changes):
        """Return -log p of each word of stream `row`.

        `changes` maps steps to the k to choose there; the model makes all other choices anew.
        """
        carry, found = model.initialize_carry(1, jax.random.key(0)), []
        for t in range(row * length, min((row + 1) * length, len(tokens))):
            k = changes.get(t - row * length, 0)
            carry, nll = step(jnp.int32(inputs[t]), jnp.int32(tokens[t]), carry, jnp.int32(k))
            found.append(float(nll))
        return np.array(found)

    return learner, params, nll_of_stream


@pytest.mark.slow
def test_one_choice_of_a_language_model(language):
    learner, params, nll_of_stream = language
    found = pieces(learner, params, layer=1, states=K)
    for row, t in ((0, 0), (0, 4), (1, 9)):
        piece = found[t]
        for k in range(1, K + 1):
            expected = nll_of_stream(row, {t: k})[t]
            np.testing.assert_allclose(piece.losses[row, 0, k - 1], expected, rtol=1e-5)
        assert piece.losses[row, 0, piece.taken[row, 0] - 1] == pytest.approx(
            float(piece.path[row]), rel=1e-5
        )
    # Every token of the split is counted once.
    assert sum(int(piece.counts.sum()) for piece in found) == len(learner.task.tokens("dev"))
    # State t-k is the state before step t-k+1.
    for t, k in itertools.product((0, 3, 7), range(1, K + 1)):
        before = found[t - k + 1].before[:, 0, 0] if t >= k - 1 else np.zeros((ROWS, 6))
        np.testing.assert_array_equal(found[t].before[:, 0, k - 1], before)


def test_choices_of_a_window_and_the_best_of_all(language):
    learner, params, nll_of_stream = language
    window = 2
    found = pieces(learner, params, layer=1, window=window, beam=K**window)
    for row, number in ((0, 0), (1, 2)):
        piece, start = found[number], number * window
        inside = slice(start, start + window)
        taken = [int(piece.taken[row, t]) for t in range(window)]

        def cost(actions, row=row, inside=inside, start=start):
            changes = {start + t: k for t, k in enumerate(actions)}
            return nll_of_stream(row, changes)[inside].sum()

        for t, k in itertools.product(range(window), (1, K)):
            actions = [*taken[:t], k, *taken[t + 1 :]]
            np.testing.assert_allclose(piece.losses[row, t, k - 1], cost(actions), rtol=1e-5)
        np.testing.assert_allclose(piece.path[row], cost(taken), rtol=1e-5)
        costs = [cost(actions) for actions in itertools.product(range(1, K + 1), repeat=window)]
        np.testing.assert_allclose(piece.best[row], min(costs), rtol=1e-5)


@pytest.mark.parametrize("beam", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_last_choice_of_a_sequence(beam):
    learner = classification(symbols(8, dev=5, time=4), mix=0.7)
    params = params_of(learner)
    model, split = learner.model(params), learner.task.splits["dev"]
    read = jax.jit(lambda symbols, actions: jax.nn.log_softmax(model(symbols, actions=[actions]).logits[0]))
    row = 0
    for piece in pieces(learner, params, layer=0, beam=beam):
        for own in range(int(piece.counts.any(axis=1).sum())):
            np.testing.assert_array_equal(piece.counts[own], [False, False, False, True])
            for k in range(1, K + 1):
                actions = jnp.array(piece.taken[own : own + 1]).at[0, -1].set(k)
                expected = -float(read(split.inputs[row : row + 1], actions)[split.targets[row]])
                np.testing.assert_allclose(piece.losses[own, -1, k - 1], expected, rtol=1e-5)
            least = piece.losses[own, -1].min()
            assert piece.best[own] <= (least if beam else piece.path[own]) + 1e-6
            row += 1
    assert row == 5


def of_lengths(lengths):
    """Return a split of random sequences of the given lengths, padded with zeros."""
    rng, lengths = np.random.default_rng(4), np.array(lengths, np.int32)
    x = rng.integers(1, 6, (len(lengths), lengths.max())).astype(np.int32)
    x *= np.arange(x.shape[1]) < lengths[:, None]
    return Examples(x, rng.integers(CLASSES, size=len(lengths)).astype(np.int32), lengths)


def nll_of_rows(learner, params, split, layer):
    """Return a function: -log p of one row of `split`, read alone with given choices of `layer`."""
    model, count = compiled(learner.model(params)), len(learner.skips)

    def nll(row, actions):
        length = int(split.seq_lengths[row])
        chosen = [jnp.asarray(actions)[None, :length] if i == layer else None for i in range(count)]
        read = dict(policy=F.Policy("greedy"), rngs=jax.random.key(0), deterministic=True)
        logits = model(jnp.asarray(split.inputs[row : row + 1, :length]), actions=chosen, **read).logits[0]
        return -float(jax.nn.log_softmax(logits)[split.targets[row]])

    return nll


@pytest.mark.slow
def test_the_last_choice_of_a_layer_that_reads_from_the_end():
    split = of_lengths([5, 2, 7])
    learner = classification({"dev": split}, mix=1.0, model={"bidirectional": True})
    params = params_of(learner)
    assert learner.reverse == (False, True)
    nll = nll_of_rows(learner, params, split, 1)
    rows = [row for piece in pieces(learner, params, layer=1) for row in zip(*piece[:3], strict=True)]
    for row in range(3):
        counts, taken, losses = (np.asarray(part) for part in rows[row])
        assert np.flatnonzero(counts).tolist() == [0]  # this layer reads the first word last
        expected = [nll(row, [k, *taken[1:]]) for k in range(1, K + 1)]
        np.testing.assert_allclose(losses[0], expected, rtol=1e-5)
        assert np.ptp(expected) > 1e-4


@pytest.mark.slow
def test_choices_of_another_row_where_lengths_differ():
    split = of_lengths([6, 3, 6, 3, 6])
    learner = classification({"dev": split}, mix=1.0)
    params = params_of(learner)
    nll = nll_of_rows(learner, params, split, 0)
    policy = F.Policy("greedy")
    whole = list(single_interventions(learner, params, policy, "dev", layer=0, rows=3))
    taken = np.concatenate([np.asarray(piece.taken) for piece in whole])
    found = list(policy_interventions(learner, params, policy, "dev", layer=0, rows=3, constants=(1,)))
    losses = np.concatenate([np.asarray(piece.losses) for piece in found])
    for row, other in enumerate([1, 2, 0, 4, 3]):  # the last batch has two rows, and one that fills it
        over_and_over = np.tile(taken[other, : split.seq_lengths[other]], 3)
        np.testing.assert_allclose(losses[row, 2], nll(row, over_and_over), rtol=1e-5)
        np.testing.assert_allclose(losses[row, 0], nll(row, taken[row]), rtol=1e-5)
    assert len(np.unique(taken)) > 1


def test_a_single_row_has_no_other(language):
    learner, params, _ = language
    with pytest.raises(UserError, match="at least 2 rows, got 1"):
        next(policy_interventions(learner, params, F.Policy("greedy"), "dev", layer=1, rows=1, constants=()))


@pytest.mark.parametrize(
    ("stride", "mask", "expected"),
    [
        (1, None, [1, 2, 3, 4, 5]),
        (2, None, [1, 3, 5]),
        (1, [0, 1, 0, 1, 1], [2, 4, 5]),
        (2, [1, 1, 0, 1, 1], [1, 5]),
    ],
)
def test_what_may_be_chosen(stride, mask, expected):
    skip = F.Dynamic(5, empty_slots="masked", among=F.Every(stride))
    mask = None if mask is None else jnp.array(mask, bool)
    assert choices_of(skip, F.Policy(mask=mask)).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 3])
def test_choices_that_enter_no_state_are_told_apart_by_one_reading(window, monkeypatch):
    """One reading gives the same losses as reading again for each choice.

    The model copies the word that followed the chosen state.
    """
    skips = ("lstm", F.Dynamic(K, 0.0, agent="content"))
    learner = language_modelling(letters(6), skips=skips, model={"copy": "chosen"}, init_scale=2.0)
    params, how = params_of(learner), dict(layer=1, window=window, beam=K**window, states=K)
    at_once = pieces(learner, params, **how)
    monkeypatch.setattr(learner.task, "forward_of_each_choice", lambda *args, **how: None)
    again = pieces(learner, params, **how)
    for found, expected in zip(at_once, again, strict=True):
        where = np.asarray(found.counts)
        for name in ("counts", "taken", "x", "before", "path", "best"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.losses[where], expected.losses[where], rtol=1e-5, atol=1e-6)
    losses = np.concatenate([np.asarray(piece.losses)[np.asarray(piece.counts)] for piece in at_once])
    assert (np.ptp(losses, axis=1) > 1e-2).any()


def test_every_choice_replaced(language):
    learner, params, nll_of_stream = language
    policy, constants = F.Policy("greedy"), (1, 3)
    how = dict(layer=1, rows=ROWS, constants=constants)
    found = list(policy_interventions(learner, params, policy, "dev", window=5, **how))
    whole = list(single_interventions(learner, params, policy, "dev", layer=1, rows=ROWS))
    taken = np.concatenate([np.asarray(piece.taken) for piece in whole], axis=1)
    losses, counts = (
        sum(np.asarray(getattr(piece, name), np.float64) for piece in found) for name in ("losses", "count")
    )
    np.testing.assert_array_equal(counts.sum(), len(learner.task.tokens("dev")))
    for row in range(ROWS):
        length, other = int(counts[row]), taken[1 - row]
        ways = {0: {}, 2: dict(enumerate(other)), 3: dict.fromkeys(range(length), 1),
                4: dict.fromkeys(range(length), 3)}  # fmt: skip
        for way, changes in ways.items():
            np.testing.assert_allclose(losses[row, way], nll_of_stream(row, changes).sum(), rtol=1e-5)
        assert losses[row, 1] not in losses[row, [0, 2, 3, 4]]


@pytest.mark.slow
def test_choices_of_models_of_other_seeds(language):
    """Each model reads the text separately. Its choices then replace those of the first model."""
    learner, params, nll_of_stream = language
    others = [drawn_params(learner, seed) for seed in (4, 5)]
    policy, how = F.Policy("greedy"), dict(layer=1, rows=ROWS)
    taken = [
        np.concatenate([np.asarray(piece.taken) for piece in pieces(learner, each, layer=1)], axis=1)
        for each in (params, *others)
    ]
    found = list(chosen(learner, [params, *others], policy, "dev", window=5, **how))
    counts, actions, words = (
        np.concatenate([np.asarray(part) for part in parts], axis=1) for parts in zip(*found, strict=True)
    )
    whole = np.stack(taken, axis=-1)
    shown = counts[:, : whole.shape[1]]
    np.testing.assert_array_equal(actions[:, : whole.shape[1]][shown], whole[shown])
    text = learner.task.tokens("dev")
    assert counts.sum() == len(text)
    np.testing.assert_array_equal(words[counts][1 : counts[0].sum()], text[: counts[0].sum() - 1])
    assert any((one != other).any() for one, other in itertools.combinations(taken, 2))
    ways = list(
        policy_interventions(learner, params, policy, "dev", window=5, constants=(2,), others=others, **how)
    )
    losses = sum(np.asarray(piece.losses, np.float64) for piece in ways)
    for row in range(ROWS):
        length = int(shown[row].sum())
        for way, changes in {
            0: {},
            3: dict(enumerate(taken[1][row, :length])),
            4: dict(enumerate(taken[2][row, :length])),
            5: dict.fromkeys(range(length), 2),
        }.items():
            np.testing.assert_allclose(losses[row, way], nll_of_stream(row, changes).sum(), rtol=1e-5)


def test_what_chooses_nothing_is_refused(language):
    learner, params, _ = language
    with pytest.raises(UserError, match="samples no choice"):
        pieces(learner, params, layer=0)
    with pytest.raises(UserError, match="samples no choice"):
        next(chosen(learner, [params], F.Policy("greedy"), "dev", layer=0, rows=ROWS))
