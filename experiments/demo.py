"""One minute that shows what an agent learns: `python -m experiments.demo` is `dynskip demo`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
