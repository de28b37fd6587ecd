"""Penn Treebank language models (Gui et al. 2019, Table 3): `python -m experiments.ptb` is `dynskip ptb`."""

from dynskip_jax.experiments.__main__ import run_file

if __name__ == "__main__":
    run_file(__file__)
