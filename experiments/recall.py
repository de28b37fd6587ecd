"""Associative recall: `python -m experiments.recall` is `dynskip recall`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("recall")
