"""Number prediction: `python -m experiments.number_prediction` is `dynskip number_prediction`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("number_prediction")
