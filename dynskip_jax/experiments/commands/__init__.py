"""Commands over a finished run, one file each."""

from dynskip_jax.experiments.commands.explain import EXPLAIN
from dynskip_jax.experiments.commands.oracle import ORACLE
from dynskip_jax.experiments.commands.predict import PREDICT

# What every experiment offers whose model reads a line of text.
TEXT_COMMANDS = {"predict": PREDICT, "explain": EXPLAIN, "oracle": ORACLE}
