"""Language models of words: `python -m experiments.ptb` is `dynskip ptb`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("ptb")
