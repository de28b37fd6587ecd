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
from dynskip_jax.functional.keys import split_each
from dynskip_jax.models.copying import Copier, Copy, CopyCarry, no_words
from dynskip_jax.nn.cells import Initializer, require_key
from dynskip_jax.nn.cells import shared_key as shared_noise_key
from dynskip_jax.nn.linear import Linear
from dynskip_jax.nn.stack import SkipStack, num_layers


@dataclasses.dataclass(frozen=True)
class LanguageModelDropout:
    """Rates at which a language model drops what, each in [0, 1).

    Attributes:
        words: whole words, wherever they occur in a segment (Merity et al. 2018, Section 4.3).
        inputs: features of the first layer's input.
        hidden: features between layers.
        outputs: features before the softmax.
        weights: entries of every W_h, the same ones for a whole segment (Merity et al. 2018, Section 2).
        locked: features are the same ones at all steps of a segment (Merity et al. 2018, Section 4.2).
    """

    words: float = 0.0
    inputs: float = 0.0
    hidden: float = 0.0
    outputs: float = 0.0
    weights: float = 0.0
    locked: bool = False

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
        return {name: value for name, value in vars(self).items() if name != "locked"}

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
    decisions: tuple[F.Decision, ...]
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
        skips: the time skip of each layer, bottom first.
        transition: the transition of every layer, or one for each.
        depth_skip: what each layer receives from further below; see `SkipStack`.
        embedding: maps token ids to features, says how many (`.features`) and makes a table of all of them
            (`.table()`), as `CharEmbedding` does; by default a table of `embedding_features` (by default the
            first layer's size).
        embedding_features: size of that table.
        tied: the softmax's weights are the table (Inan et al. 2017); the last layer then has its size.
        copy: whether, and how, words of the recent past are copied by the choice of the last layer's skip,
            which then is one among K states; see `Copier`.
        dropout: see `LanguageModelDropout`; a number: `LanguageModelDropout.everywhere`.
        dtype: in which matrices are multiplied, by default float32; all else is float32 (see `SkipCell`).
        weight_init: initializer of every weight and bias outside `cell_options`.
        cell_options: options of `SkipCell` for all layers, or one mapping for each.
        rngs: source of the initial parameters.
    """

    def __init__(
        self,
        vocabulary_size: int,
        features: int | Sequence[int],
        skips: Sequence[F.TimeSkip],
        *,
        transition: F.Transition | Sequence[F.Transition] = F.LSTM(),  # noqa: B008 (immutable)
        depth_skip: F.DepthSkip | None = None,
        embedding: nnx.Module | None = None,
        embedding_features: int | None = None,
        tied: bool = False,
        copy: Copy = "none",
        dropout: float | LanguageModelDropout = 0.0,
        dtype: Any = None,
        weight_init: Initializer,
        cell_options: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        rngs: nnx.Rngs,
    ):
        depth = num_layers(skips)
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
        if cell_options is None or isinstance(cell_options, dict):
            cell_options = [cell_options or {}] * depth
        self.dropout = dropout
        self.embedding = embedding
        self.stack = SkipStack(
            embedding.features,
            features,
            skips,
            transition=transition,
            depth_skip=depth_skip,
            dropout=(dropout.inputs, *(dropout.hidden,) * (depth - 1), dropout.outputs),
            locked=dropout.locked,
            dtype=dtype,
            cell_options=[{"weight_dropout": dropout.weights, **options} for options in cell_options],
            rngs=rngs,
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

    def initialize_carry(
        self, batch_size: int, rngs: nnx.Rngs | nnx.RngStream | Array | None = None
    ) -> tuple[F.SkipCarry, ...] | CopyCarry:
        """Returns each layer's initial carry for a batch of streams; see `SkipStack`."""
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
        return self.stack.layers[-1].cell.skip.max_skip

    def __call__(
        self,
        tokens: Int[Array, "batch time"],
        *,
        initial_carry: tuple[F.SkipCarry, ...] | CopyCarry | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
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
                shared_key = shared_noise_key(rngs)
            words_key, weight_key = jax.random.split(shared_key)
        layers, earlier = initial_carry, None
        if self.copier is not None:
            if initial_carry is None:
                carry_key = jax.random.key(0)
                if rngs is not None or self.stack.samples(policy, actions, deterministic):
                    carry_key, rngs = split_each(require_key(rngs, "this model"), 2)
                initial_carry = self.initialize_carry(len(tokens), carry_key)
            layers, earlier = initial_carry
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
            cell = self.stack.layers[-1].cell
            policy = cell._policy(policy=policy, deterministic=deterministic)
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
