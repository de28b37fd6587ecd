"""Runs side by side: `python -m experiments.report` is `dynskip report`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
