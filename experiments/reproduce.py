"""Commands behind tables: `python -m experiments.reproduce` is `dynskip reproduce`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("reproduce")
