"""Implement the BiLSTM-CRF of `experiments.conll2003` in PyTorch and pytorch-crf. Imports both."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torchcrf import CRF

from dynskip_jax.data.batches import Batch
from dynskip_jax.data.tagger_vocabulary import CAPITALS, TaggerVocabulary
from dynskip_jax.experiments.tagging import TaggerSettings


class BiLSTMCRF(nn.Module):
    """A tagger with the architecture of `models.Tagger`: embeddings, one bidirectional LSTM, and a CRF.

    The inputs of the LSTM are embeddings of words, characters and capitals.

    Args:
        chosen: Settings with the sizes and rates.
        vocabulary: Vocabulary with the numbers of words, characters and tags, and with the rare words.
    """

    def __init__(self, chosen: TaggerSettings, vocabulary: TaggerVocabulary):
        super().__init__()
        m = chosen.model
        self.unknown_rate, self.num_frequent = m.unknown_rate, vocabulary.num_frequent
        self.width = m.char_width
        self.words = nn.Embedding(len(vocabulary.words), m.embedding_features)
        self.characters = nn.Embedding(vocabulary.num_characters, m.char_features, padding_idx=0)
        self.filters = nn.Conv1d(m.char_features, m.char_outputs, m.char_width, padding=m.char_width - 1)
        self.capitals = nn.Embedding(len(CAPITALS), m.capital_features)
        size = m.embedding_features + m.char_outputs + m.capital_features
        self.lstm = nn.LSTM(size, m.features, bidirectional=True, batch_first=True)
        self.before, self.behind = nn.Dropout(m.dropout), nn.Dropout(m.dropout)
        self.emissions = nn.Linear(2 * m.features, len(vocabulary.tags))
        self.crf = CRF(len(vocabulary.tags), batch_first=True)

    def forward(self, words, characters, capitals, lengths) -> torch.Tensor:
        """Return the score of each tag at each word, (batch, time, tags)."""
        if self.training and self.unknown_rate:
            forgotten = torch.rand(words.shape) < self.unknown_rate
            words = words.masked_fill(forgotten & (words >= self.num_frequent), 0)
        batch, time, length = characters.shape
        spelled = self.characters(characters.reshape(batch * time, length)).transpose(1, 2)
        # Mask windows that start after the end of a word: they contain only the bias.
        windows = torch.arange(length + self.width - 1)
        inside = windows < ((characters != 0).sum(-1).reshape(-1, 1) + self.width - 1)
        read = self.filters(spelled).masked_fill(~inside[:, None], -torch.inf).amax(-1)
        read = torch.where((characters[..., :1] != 0).reshape(-1, 1), read, 0).reshape(batch, time, -1)
        x = self.before(torch.cat([self.words(words), read, self.capitals(capitals)], -1))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.emissions(self.behind(h))


def tensors(batch: Batch) -> tuple[torch.Tensor, ...]:
    """Return the words, characters, capitals and lengths of a batch, cut at its longest sentence."""
    longest = int(batch.seq_lengths.max())
    read = (batch.inputs.words, batch.inputs.characters, batch.inputs.capitals)
    leaves = (np.ascontiguousarray(leaf[:, :longest]) for leaf in read)
    return (*(torch.from_numpy(leaf).long() for leaf in leaves), torch.from_numpy(batch.seq_lengths))


def of_one_seed(batch: Batch) -> Batch:
    """Return the counted rows of a training batch with one seed, without the axis of seeds."""
    rows = slice(None) if batch.mask is None else np.asarray(batch.mask[0])
    inputs = type(batch.inputs)(*(np.asarray(leaf[0])[rows] for leaf in batch.inputs))
    return Batch(inputs, batch.targets[0][rows], seq_lengths=batch.seq_lengths[0][rows])


def trainer(model: BiLSTMCRF, chosen: TaggerSettings) -> Callable[[Batch], None]:
    """Return a function that makes one Adam step on a batch; the loss is the mean over its sentences."""
    optimizer = torch.optim.Adam(model.parameters(), lr=chosen.training.learning_rate)

    def step(batch: Batch) -> None:
        *inputs, lengths = tensors(batch)
        targets = torch.from_numpy(np.ascontiguousarray(batch.targets[:, : inputs[0].shape[1]])).long()
        mask = torch.arange(targets.shape[1]) < lengths[:, None]
        optimizer.zero_grad(set_to_none=True)
        loss = -model.crf(model.train()(*inputs, lengths), targets, mask, reduction="mean")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), chosen.training.clip)
        optimizer.step()

    return step


def predict(model: BiLSTMCRF, batch: Batch) -> list[list[int]]:
    """Return the predicted tags of each sentence."""
    with torch.no_grad():
        *inputs, lengths = tensors(batch)
        mask = torch.arange(inputs[0].shape[1]) < lengths[:, None]
        return model.crf.decode(model.eval()(*inputs, lengths), mask)
