"""Named entities and chunks: `python -m experiments.conll2003` is `dynskip conll2003`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("conll2003")
