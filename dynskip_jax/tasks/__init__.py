"""Tasks, each in its own file: data, model, batches, loss, score, texts and pictures."""

import lazy_loader

# A task needs no other tasks.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
