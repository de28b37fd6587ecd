"""Word vectors: `python -m experiments.word_vectors` is `dynskip word_vectors`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("word_vectors")
