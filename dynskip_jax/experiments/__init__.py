"""Experiments: one file for each task, and the code that trains, loads and reports its runs.

`dynskip` lists the experiments, and `dynskip <name>` runs one; so does `python -m experiments.<name>` in a
checkout. `dynskip_jax.load_run` loads a finished run.
"""
