"""Run folders: files, one manifest, checkpoints, and the results that are read from them."""
