"""Training: the step, the loop, checkpoints, metrics and run directories."""
