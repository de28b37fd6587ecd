"""Your own texts with a class each: `python -m experiments.classify` is `dynskip classify`."""

from dynskip_jax.experiments.__main__ import run_by_name
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(lambda: run_by_name("classify"))
