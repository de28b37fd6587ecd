"""Parts of speech and CCG categories: `python -m experiments.pos` is `dynskip pos`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
