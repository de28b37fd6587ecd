"""How alike two sentences are (SICK): `python -m experiments.sick` is `dynskip sick`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("sick")
