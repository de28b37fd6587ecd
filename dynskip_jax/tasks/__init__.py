"""Tasks: what is trained, how it is scored; each in a file."""
