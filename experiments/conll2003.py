"""Named entities and chunks: `python -m experiments.conll2003` is `dynskip conll2003`."""

from dynskip_jax.experiments.__main__ import run_by_name
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(lambda: run_by_name("conll2003"))
