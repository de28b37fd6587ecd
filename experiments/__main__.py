"""List the experiments: `python -m experiments`."""

from dynskip_jax.cli import list_experiments, run_main

if __name__ == "__main__":
    run_main(list_experiments)
