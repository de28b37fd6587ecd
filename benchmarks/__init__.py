"""Benchmarks: `python -m benchmarks.<what>`."""
