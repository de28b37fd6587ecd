"""Sentiment of movie reviews (Gui et al. 2019, Table 4): `python -m experiments.imdb` is `dynskip
imdb`.
"""

from dynskip_jax.cli import start

if __name__ == "__main__":
    start("imdb")
