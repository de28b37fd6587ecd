"""A task of one's own: the folder that docs/own_task.md shows."""
