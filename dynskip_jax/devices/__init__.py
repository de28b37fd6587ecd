"""Execution on one device, several devices or several processes; memory use and the compilation
cache.
"""
