"""The folder of a run: settings, metrics, checkpoints, and the way back into it."""
