"""One minute that shows what an agent learns: `python -m experiments.demo` is `dynskip demo`."""

from dynskip_jax.experiments.__main__ import run_by_name
from dynskip_jax.experiments.cli import run_main

if __name__ == "__main__":
    run_main(lambda: run_by_name("demo"))
