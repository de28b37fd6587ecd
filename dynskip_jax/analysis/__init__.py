"""Analyse trained models: gradient flow, choices of skips, statistics over seeds, and plots."""
