"""Language models of source code: `python -m experiments.code` is `dynskip code`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("code")
