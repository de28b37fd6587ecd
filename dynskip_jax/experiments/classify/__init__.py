"""The experiment `classify`: its settings and presets (`config`, without JAX), and its data and model (`task`)."""
