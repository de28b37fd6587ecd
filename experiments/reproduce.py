"""The commands behind each results table: `python -m experiments.reproduce` is `dynskip reproduce`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
