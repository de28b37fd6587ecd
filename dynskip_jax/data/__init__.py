"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

from dynskip_jax.data.batches import Batch as Batch
from dynskip_jax.data.batches import Examples as Examples
from dynskip_jax.data.batches import length_buckets as length_buckets
from dynskip_jax.data.batches import num_segments as num_segments
from dynskip_jax.data.batches import pad_sequences as pad_sequences
from dynskip_jax.data.batches import segments as segments
from dynskip_jax.data.corpora import find_language_corpus as find_language_corpus
from dynskip_jax.data.labelled import find_labelled_text as find_labelled_text
from dynskip_jax.data.language import LanguageCorpus as LanguageCorpus
from dynskip_jax.data.language import Pieces as Pieces
from dynskip_jax.data.language import make_corpus as make_corpus
from dynskip_jax.data.number_prediction import load_number_prediction as load_number_prediction
from dynskip_jax.data.tagged import find_tagged_corpus as find_tagged_corpus
from dynskip_jax.data.vocabularies import EOS as EOS
from dynskip_jax.data.vocabularies import UNK as UNK
from dynskip_jax.data.vocabularies import Vocabulary as Vocabulary
