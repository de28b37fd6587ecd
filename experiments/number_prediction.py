"""Number prediction: `python -m experiments.number_prediction` is `dynskip number_prediction`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
