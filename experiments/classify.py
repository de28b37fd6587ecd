"""Your own texts with a class each: `python -m experiments.classify` is `dynskip classify`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
