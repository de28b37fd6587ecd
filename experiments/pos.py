"""Parts of speech and CCG categories: `python -m experiments.pos` is `dynskip pos`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("pos")
