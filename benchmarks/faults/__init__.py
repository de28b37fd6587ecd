"""Fault injection: break small runs of every experiment on purpose, and check what comes of it."""
