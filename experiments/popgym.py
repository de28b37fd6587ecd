"""A memory for agents: `python -m experiments.popgym` is `dynskip popgym`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("popgym")
