"""Sentiment of sentences in five classes (SST-5): `python -m experiments.sst` is `dynskip sst`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("sst")
