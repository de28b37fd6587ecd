"""Write and read run folders: settings, metrics, checkpoints and results."""
