"""Check the rate that decays on a plateau by hand; the schedules by epoch are tested with their settings."""

import numpy as np

from dynskip_jax.training.optimizer import decay_on_plateau


def test_plateau_counts_each_seeds_own_stalled_epochs():
    rate = decay_on_plateau(1.0, 0.5, threshold=1.0, floor=0.005)
    # Improvements of the first seed: 10, 0.5, -5, 6; of the second: 1, 0.9, 2, 0.
    epochs = [[100, 50], [90, 49], [89.5, 48.1], [94.5, 46.1], [88.5, 46.1]]
    expected = [[1, 1], [1, 1], [1, 1], [0.5, 0.5], [0.25, 0.5], [0.25, 0.25]]
    for epoch, wanted in enumerate(expected):
        history = np.array(epochs[:epoch], float).reshape(epoch, 2)
        np.testing.assert_allclose(rate(epoch, history), wanted, err_msg=f"epoch {epoch}")
    np.testing.assert_allclose(rate(3, np.array([[90], [np.nan], [90]])), [1.0])  # no number, no plateau
    np.testing.assert_allclose(rate(8, np.full((8, 1), 90.0)), [1 / 128])
    np.testing.assert_allclose(rate(9, np.full((9, 1), 90.0)), [0.005])
