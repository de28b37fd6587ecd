"""Has each letter of a line occurred before? The score is F1 over all letters."""

from dynskip_jax.experiment import Experiment

EXPERIMENT = Experiment(
    name="toy",
    about=__doc__,
    task="toy.task",
    presets={
        "small": dict(features=8, epochs=2, learning_rate=0.03),
        "rollouts": dict(features=8, rollouts=2, baseline="rollouts"),
    },
    model="dynamic:3",
    columns={"dev_f1": ("dev F1", ".2f"), "test_f1": ("test F1", ".2f")},
    curves=("dev_f1",),
)
