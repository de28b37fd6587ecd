"""Penn Treebank language models (Gui et al. 2019, Table 3): `python -m experiments.ptb` is `dynskip
ptb`.
"""

from dynskip_jax.cli import start

if __name__ == "__main__":
    start("ptb")
