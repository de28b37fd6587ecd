"""Check that user-given names in plots are plain text, never math text."""

import pytest
from matplotlib.image import imread

from dynskip_jax.analysis.plots import learning_curves, metric_over_metric

RECORDS = [{"epoch": n, "dev_nll": [1.0 / n, 2.0 / n]} for n in (1, 2, 3)]


@pytest.mark.parametrize("name", ["$", "a $5_$ bill", r"$\frac{1}{", "100 $ and 200 $^$", "{x}_1^2"])
def test_a_dollar_in_a_name_begins_no_mathematics(name, tmp_path):
    """A dollar sign in a folder's name once made every plot of a finished run fail."""
    path = tmp_path / "picture.png"
    learning_curves({name: RECORDS}, "epoch", ["dev_nll"], path, f"on {name}")
    assert imread(path).shape[:2] == (600, 900)
    metric_over_metric(
        {name: [(name, [1.0], [2.0])]}, path, name, x_label=name, y_label="y", levels={name: [1.0]}
    )
    assert imread(path).shape[:2] == (600, 900)
