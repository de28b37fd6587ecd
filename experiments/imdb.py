"""Sentiment of movie reviews (Gui et al. 2019, Table 4): `python -m experiments.imdb` is `dynskip imdb`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
