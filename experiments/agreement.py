"""Agreement at a distance: `python -m experiments.agreement` is `dynskip agreement`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("agreement")
