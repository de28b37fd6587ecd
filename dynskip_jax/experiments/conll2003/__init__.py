"""The experiment `conll2003`: its settings and presets (`config`, without JAX), and its data and model (`task`)."""
