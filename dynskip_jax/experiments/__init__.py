"""The experiments: one file for each task, and the engine that trains, loads and reports its runs.

`dynskip` on the command line, or `python -m experiments.<name>` in a checkout, lists and runs them;
`dynskip_jax.load_run` loads a finished run.
"""
