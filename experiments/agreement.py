"""Agreement at a distance: `python -m experiments.agreement` is `dynskip agreement`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
