"""Any command: `python -m experiments NAME` is `dynskip NAME`; without a name, all are listed."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start()
