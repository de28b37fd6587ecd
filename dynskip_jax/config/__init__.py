"""What a run is asked to do: settings, their flags and presets, experiments as values. No JAX."""
