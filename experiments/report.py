"""Runs side by side: `python -m experiments.report` is `dynskip report`."""

from dynskip_jax.experiments.__main__ import run_by_name
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(lambda: run_by_name("report"))
