"""The commands over finished runs, one file each."""

from dynskip_jax.experiments.commands.explain import EXPLAIN
from dynskip_jax.experiments.commands.oracle import ORACLE
from dynskip_jax.experiments.commands.predict import PREDICT

# Commands of every experiment whose model reads a line of text.
TEXT_COMMANDS = {"predict": PREDICT, "explain": EXPLAIN, "oracle": ORACLE}
