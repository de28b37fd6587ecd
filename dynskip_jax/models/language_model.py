"""Recurrent language models with a time skip in each layer: of words or characters, tied or not."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.models.copying import Copier, Copy, CopyCarry, no_words
from dynskip_jax.nn.calls import Rngs, policy_or_default, require_key
from dynskip_jax.nn.cells import Initializer
from dynskip_jax.nn.layers import SkipLSTM, count_layers, needs_key
from dynskip_jax.nn.linear import Linear


@dataclasses.dataclass(frozen=True)
class LanguageModelDropout:
    """Rates at which a language model drops what, each in [0, 1).

    Attributes:
        words: whole words, wherever they occur in a segment (Merity et al. 2018, Section 4.3).
        inputs: features of the first layer's input.
        hidden: features between layers.
        outputs: features before the softmax.
        weights: entries of every W_h, the same ones for a whole segment (Merity et al. 2018, Section 2).
        variational: the same features are dropped at all steps of a segment (Merity et al. 2018,
            Section 4.2).
    """

    words: float = 0.0
    inputs: float = 0.0
    hidden: float = 0.0
    outputs: float = 0.0
    weights: float = 0.0
    variational: bool = False

    def __post_init__(self) -> None:
        """Checks the rates."""
        for name, rate in self.rates().items():
            if not 0.0 <= rate < 1.0:
                raise UserError(f"the dropout of {name} lies in [0, 1), got {rate}")

    @classmethod
    def everywhere(cls, rate: float) -> "LanguageModelDropout":
        """On every layer's input and before the softmax (Zaremba et al. 2014, Section 3.2)."""
        return cls(inputs=rate, hidden=rate, outputs=rate)

    def rates(self) -> dict[str, float]:
        """Returns each rate by its name."""
        return {name: value for name, value in vars(self).items() if name != "variational"}

    @property
    def shares_noise(self) -> bool:
        """Whether something is dropped for all streams alike, with a key that they share."""
        return self.words > 0 or self.weights > 0


class LanguageModelOutput(NamedTuple):
    """What the model says of each position.

    Attributes:
        logits: unnormalised log-probabilities of the next token, (batch, time, vocabulary); where words are
            copied, log-probabilities with them.
        decisions: one trace per layer, bottom first.
        states: the top layer's h, (batch, time, hidden).
        dropped_states: what the softmax saw of it, after dropout.
        observations: for each layer the x(t) and the h(t-1) of s(t) in Eq. 1, (batch, time, ...).
        of_softmax: the logits of the softmax alone, where words are copied; None where none are.
        copies: what may be copied; likewise.
        choices: what each of the K choices would copy; likewise. It is `copies`, unless a choice was made.
    """

    logits: Float[Array, "batch time vocabulary"]
    decisions: tuple[F.DecisionTrace, ...]
    states: Float[Array, "batch time hidden"]
    dropped_states: Float[Array, "batch time hidden"]
    observations: tuple[tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...]
    of_softmax: Float[Array, "batch time vocabulary"] | None = None
    copies: F.Copies | None = None
    choices: F.Copies | None = None

    def log_likelihood(self, targets: Int[Array, "batch time"]) -> Float[Array, "batch time"]:
        """Returns log p of these tokens, in nats; their mean over the choices where one will be made."""
        if self.copies is None:
            return -optax.softmax_cross_entropy_with_integer_labels(self.logits, targets)
        one_gate = self.copies.gates.shape[-1] == 1
        of_copies = F.copied_log_likelihood if one_gate else F.chosen_log_likelihood
        return of_copies(self.copies, self.log_likelihood_of_softmax(targets), targets)

    def log_likelihood_of_softmax(self, targets: Int[Array, "batch time"]) -> Float[Array, "batch time"]:
        """Returns log p of these tokens by the softmax alone, where words are copied."""
        return -optax.softmax_cross_entropy_with_integer_labels(self.of_softmax, targets)

    def log_likelihood_of_each(self, targets: Int[Array, "batch time"]) -> Float[Array, "batch time K"]:
        """Returns log p of these tokens with each of the K choices alone, where words are copied."""
        return F.log_likelihood_of_each(self.choices, self.log_likelihood_of_softmax(targets), targets)


class LanguageModel(nnx.Module):
    """Embedding, stacked LSTMs, softmax (Zaremba et al. 2014).

    Args:
        vocabulary_size: number of token ids.
        features: size of every layer's state, or one size for each layer.
        skip: the time skip of every layer, or one for each layer, bottom first.
        embedding: maps token ids to features, says how many (`.features`) and makes a table of all of them
            (`.table()`), as `CharEmbedding` does; by default a table of `embedding_features` (by default the
            first layer's size).
        embedding_features: size of that table.
        tied: the softmax's weights are the table (Inan et al. 2017); the last layer then has its size.
        copy: whether, and how, words of the recent past are copied by the choice of the last layer's skip,
            which then is one among K states; see `Copier`.
        dropout: see `LanguageModelDropout`; a number: `LanguageModelDropout.everywhere`.
        dtype: dtype in which matrices are multiplied; float32 by default. All else is float32.
        weight_init: initializer of every weight and bias outside the recurrent layers.
        rngs: source of the initial parameters.
        **rnn_options: arguments of `SkipLSTM`, such as `num_layers`, `transition`, `depth_skip`,
            `bidirectional` and `dtype`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        features: int | Sequence[int],
        skip: F.TimeSkip | Sequence[F.TimeSkip],
        *,
        embedding: nnx.Module | None = None,
        embedding_features: int | None = None,
        tied: bool = False,
        copy: Copy = "none",
        dropout: float | LanguageModelDropout = 0.0,
        dtype: Any = None,
        weight_init: Initializer,
        rngs: nnx.Rngs,
        **rnn_options: Any,
    ):
        depth = count_layers(rnn_options.get("num_layers"), skip=skip, features=features)
        if isinstance(features, int):
            features = (features,) * depth
        if not isinstance(dropout, LanguageModelDropout):
            dropout = LanguageModelDropout.everywhere(dropout)
        if embedding is None:
            size = embedding_features or features[0]
            embedding = nnx.Embed(vocabulary_size, size, embedding_init=weight_init, rngs=rngs)
        is_table = isinstance(embedding, nnx.Embed)
        if not is_table and (tied or dropout.words):
            raise UserError("tied weights and dropped words need an embedding that is a table of words")
        if tied and embedding.features != features[-1]:
            raise UserError(
                f"tied weights need an embedding of the last layer's size, {features[-1]}, "
                f"got {embedding.features}"
            )
        self.dropout = dropout
        self.embedding = embedding
        self.stack = SkipLSTM(
            embedding.features,
            features,
            skip=skip,
            dropout=(dropout.inputs, *(dropout.hidden,) * (depth - 1), dropout.outputs),
            variational=dropout.variational,
            weight_dropout=dropout.weights,
            dtype=dtype,
            rngs=rngs,
            **rnn_options,
        )
        self.copier = nnx.data(None)
        if copy != "none":
            self.copier = Copier(features[-1], copy, weight_init=weight_init, dtype=dtype, rngs=rngs)
        self.tied = tied
        self.dtype = dtype
        if tied:
            self.bias = nnx.Param(weight_init(rngs.params(), (vocabulary_size,)))
        else:
            self.softmax = Linear(
                features[-1],
                vocabulary_size,
                dtype=dtype,
                kernel_init=weight_init,
                bias_init=weight_init,
                rngs=rngs,
            )

    def with_table(self) -> "LanguageModel":
        """Returns the model with a table of what its embedding makes of each word: the same, but faster.

        A model that has a table already is returned as it is.
        """
        if isinstance(self.embedding, nnx.Embed):
            return self
        table = self.embedding.table()
        model = nnx.merge(*nnx.split(self))
        model.embedding = nnx.Embed(*table.shape, embedding_init=lambda *_: table, rngs=nnx.Rngs(0))
        return model

    def initialize_carry(self, batch_size: int, rngs: Rngs = None) -> tuple[F.SkipCarry, ...] | CopyCarry:
        """Returns each layer's initial carry for a batch of streams; see `SkipLayers`."""
        layers = self.stack.initialize_carry(batch_size, rngs)
        return layers if self.copier is None else CopyCarry(layers, no_words(batch_size, self._max_skip))

    def restart_carry(self, carry: Any) -> Any:
        """Keeps each layer's newest state and forgets the others, and the words behind them."""
        if self.copier is None:
            return self.stack.restart_carry(carry)
        return CopyCarry(self.stack.restart_carry(carry.layers), jnp.full_like(carry.words, F.NO_WORD))

    @staticmethod
    def steps_read(carry: Any) -> Int[Array, " batch"]:
        """Returns how many steps were taken since a carry was made or restarted."""
        layers = carry.layers if isinstance(carry, CopyCarry) else carry
        return layers[0].step

    @property
    def _max_skip(self) -> int:
        """K of the skip that chooses what is copied."""
        return self.stack.cells[-1].skip.max_skip

    def __call__(
        self,
        tokens: Int[Array, "batch time"],
        *,
        initial_carry: tuple[F.SkipCarry, ...] | CopyCarry | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        shared_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
        return_carry: bool = False,
    ) -> Any:
        """Reads one segment of each stream.

        Args:
            tokens: token ids, (batch, time).
            initial_carry: that of the segment before; by default that of `initialize_carry`.
            actions: for each layer the actions to be replayed, or None.
            policy: how choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: for dropout, and for the initial carry: a PRNG key, one for each stream, (batch,), an
                `nnx.Rngs` or a stream.
            shared_key: one PRNG key for what is dropped for all streams alike, words and weights, in place of
                one made of `rngs`.
            deterministic: overrides what `.train()` and `.eval()` say.
            return_carry: return `(carry, output)`, the carry being that for the next segment.
        """
        deterministic = self.stack.deterministic if deterministic is None else deterministic
        words_key = weight_key = None
        if self.dropout.shares_noise and not deterministic:
            if shared_key is None:
                rngs = require_key(rngs, "this model")
                shared_key = F.shared_key(rngs)
            words_key, weight_key = jax.random.split(shared_key)
        layers, earlier = initial_carry, None
        if self.copier is not None:
            if initial_carry is None:
                initial_carry = self.initialize_carry(len(tokens))
            layers, earlier = initial_carry
        arguments = dict(initial_carry=layers, actions=actions, weight_key=weight_key)
        if not needs_key(self.stack, policy, **arguments, deterministic=deterministic):
            rngs = None  # choices continue with the keys of the carry
        carry, outputs = self.stack(
            self._embed(tokens, words_key),
            initial_carry=layers,
            actions=actions,
            policy=policy,
            rngs=rngs,
            weight_key=weight_key,
            deterministic=deterministic,
            return_carry=True,
        )
        output = LanguageModelOutput(
            self._logits(outputs.h), outputs.decisions, outputs.states, outputs.h, outputs.observations
        )
        if self.copier is not None:
            words, earlier = F.followers(tokens, earlier)
            cell = self.stack.cells[-1]
            policy = policy_or_default(policy, deterministic)
            choices = self.copier(cell, layers[-1], outputs.observations[-1], outputs.h, words, policy)
            copies = choices
            # In training words that are chosen are held against the word to come all at once.
            if deterministic and self.copier.is_hard(policy):
                copies = F.copy_of_choice(choices, outputs.decisions[-1].action)
            logits = F.copied_log_probs(copies, jax.nn.log_softmax(output.logits))
            output = output._replace(logits=logits, of_softmax=output.logits, copies=copies, choices=choices)
            carry = CopyCarry(carry, earlier)
        return (carry, output) if return_carry else output

    def _embed(
        self, tokens: Int[Array, "batch time"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch time features"]:
        if key is None or self.dropout.words == 0.0:
            return self.embedding(tokens)
        table = F.embedding_dropout(key, self.dropout.words, self.embedding.embedding[...])
        return jnp.take(table, tokens, axis=0)

    def _logits(self, h: Float[Array, "batch time hidden"]) -> Float[Array, "batch time vocabulary"]:
        if not self.tied:
            return self.softmax(h)
        table = self.embedding.embedding[...].astype(self.dtype or jnp.float32)
        return F.product(h, table.T) + self.bias[...][None, None]
