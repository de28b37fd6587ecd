"""Check learning-rate schedules against sequences computed by hand."""

import numpy as np
import pytest

from dynskip_jax.training.schedule import decay_after, decay_on_plateau, inverse_time


def history_of(*epochs):
    return np.array(epochs, float).reshape(len(epochs), -1)


def test_zaremba_small_keeps_the_rate_for_four_epochs_and_then_halves_it():
    rate = decay_after(1.0, 0.5, 4)
    rates = [rate(epoch, np.zeros((epoch, 1)))[0] for epoch in range(7)]
    assert rates == [1.0, 1.0, 1.0, 1.0, 0.5, 0.25, 0.125]


def test_constant_epochs_have_one_rate_per_seed():
    rates = decay_after(0.3, 0.5, 1)(2, np.zeros((2, 3)))
    np.testing.assert_allclose(rates, [0.075, 0.075, 0.075])


def test_no_decay_with_factor_one():
    rate = decay_after(0.001, 1.0, 2)
    assert [rate(epoch, np.zeros((epoch, 1)))[0] for epoch in range(5)] == [0.001] * 5


def test_plateau_counts_each_seeds_own_stalled_epochs():
    rate = decay_on_plateau(1.0, 0.5, threshold=1.0, floor=0.005)
    # Improvements of the first seed: 10, 0.5, -5, 6; of the second: 1, 0.9, 2, 0.
    epochs = [[100, 50], [90, 49], [89.5, 48.1], [94.5, 46.1], [88.5, 46.1]]
    expected = [[1, 1], [1, 1], [1, 1], [0.5, 0.5], [0.25, 0.5], [0.25, 0.25]]
    for epoch, wanted in enumerate(expected):
        history = np.array(epochs[:epoch], float).reshape(epoch, 2)
        np.testing.assert_allclose(rate(epoch, history), wanted, err_msg=f"epoch {epoch}")


def test_plateau_ends_at_the_floor():
    rate = decay_on_plateau(1.0, 1 / 1.2, threshold=1.0, floor=0.005)
    stalled = np.full((200, 1), 80.0)
    rates = np.array([rate(epoch, stalled[:epoch])[0] for epoch in range(200)])
    # 1.2^-29 = 0.00506 is the last rate above the floor. The first stalled epoch is the second one.
    assert rates[1] == 1.0
    assert rates[30] == pytest.approx(1.2**-29)
    assert (rates[31:] == 0.005).all()
    assert (np.diff(rates) <= 0).all()


def test_an_epoch_without_a_number_is_no_plateau():
    rate = decay_on_plateau(1.0, 0.5, threshold=1.0, floor=0.1)
    np.testing.assert_allclose(rate(3, history_of(90, np.nan, 90)), [1.0])


def test_inverse_time():
    rate = inverse_time(0.2, 0.5)
    rates = [rate(epoch, np.zeros((epoch, 2))) for epoch in range(3)]
    np.testing.assert_allclose(rates, [[0.2, 0.2], [0.2 / 1.5, 0.2 / 1.5], [0.1, 0.1]])
