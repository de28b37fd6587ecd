"""Three minutes that show what an agent learns: `python -m experiments.demo` is `dynskip demo`."""

from dynskip_jax.cli.main import start

if __name__ == "__main__":
    start("demo")
