"""Sentiment of sentences in five classes (SST-5): `python -m experiments.sst` is `dynskip sst`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
