"""The commands behind each results table: `python -m experiments.reproduce` is `dynskip reproduce`."""

from dynskip_jax.experiments.__main__ import run_by_name
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(lambda: run_by_name("reproduce"))
