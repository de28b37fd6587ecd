"""The experiment `number_prediction`: its settings and presets (`config`, without JAX), and its data and model (`task`)."""
