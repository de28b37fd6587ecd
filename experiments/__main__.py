"""`python -m experiments`: lists the experiments."""

from dynskip_jax.experiments.__main__ import list_experiments
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(list_experiments)
