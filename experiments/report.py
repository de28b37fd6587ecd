"""Runs side by side: `python -m experiments.report` is `dynskip report`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("report")
