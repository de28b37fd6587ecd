"""Training: optimizers, schedules, and the loop of this project's experiments."""
