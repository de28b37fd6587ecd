"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

import lazy_loader

# A reader needs no other readers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
