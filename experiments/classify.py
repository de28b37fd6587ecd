"""Your own texts with a class each: `python -m experiments.classify` is `dynskip classify`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("classify")
