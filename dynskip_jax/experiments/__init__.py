"""Experiments: each has its settings in `config`, without JAX, and its task in `task`."""
