"""Sentiment of movie reviews: `python -m experiments.imdb` is `dynskip imdb`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("imdb")
