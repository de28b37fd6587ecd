"""Word vectors of your own texts: `python -m experiments.word_vectors` is `dynskip word_vectors`."""

from dynskip_jax.experiments.__main__ import run_by_name
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(lambda: run_by_name("word_vectors"))
