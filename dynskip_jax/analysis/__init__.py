"""Analysis: gradient flow, skip traces and plots."""
