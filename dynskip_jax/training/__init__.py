"""Training: optimizers, schedules, sweeps, and the loop of this project's experiments."""
