"""Named entities and chunks: `python -m experiments.conll2003` is `dynskip conll2003`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
