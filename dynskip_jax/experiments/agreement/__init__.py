"""Settings and presets (`config`, without JAX), and data and model (`task`)."""
