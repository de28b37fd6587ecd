"""Experiments: each has settings and presets in `config`, without JAX, and its data and model in
`task`.
"""
