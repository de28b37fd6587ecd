"""How alike two sentences are (SICK): `python -m experiments.sick` is `dynskip sick`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
