"""Word vectors of your own texts: `python -m experiments.word_vectors` is `dynskip word_vectors`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
