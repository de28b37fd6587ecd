"""Experiments: `python -m experiments.<task>`."""
