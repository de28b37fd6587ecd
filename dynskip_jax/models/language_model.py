"""Recurrent language models, with a time skip in each layer."""

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
from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.layers import Observations
from dynskip_jax.models.copying import Copier, Copy, CopyCarry
from dynskip_jax.nn.base import Linear
from dynskip_jax.nn.calls import Rngs, policy_or_default, refuse
from dynskip_jax.nn.initializers import Initializer
from dynskip_jax.nn.layers import SkipRNN, count_layers, needs_key, policy_of_each

Carry = tuple[F.SkipCarry, ...] | CopyCarry


@dataclasses.dataclass(frozen=True)
class LanguageModelDropout:
    """Dropout rates of a language model; the sections are those of Merity et al. (2018)."""

    words: float = 0.0  # whole words, in all their occurrences in a segment (Section 4.3)
    inputs: float = 0.0  # features of the first layer's input
    hidden: float = 0.0  # features between layers
    outputs: float = 0.0  # features before the softmax
    weights: float = 0.0  # entries of every W_h, with one mask for a segment (Section 2)
    variational: bool = False  # whether features have one mask for a segment (Section 4.2)

    def __post_init__(self) -> None:
        """Check the rates."""
        for name, rate in vars(self).items():
            if name != "variational":
                check_rates(f"the dropout of {name}", rate)


class LanguageModelOutput(NamedTuple):
    """Output of `LanguageModel`; the last three are None if the model does not copy words."""

    # Unnormalised log p of the next token; if the model copies words, normalised, and with copying.
    logits: Float[Array, "batch time vocabulary"]
    decisions: tuple[F.DecisionTrace, ...]
    states: Float[Array, "batch time hidden"]  # h of the top layer
    dropped_states: Float[Array, "batch time hidden"]  # after dropout: the input of the softmax
    observations: Observations
    of_softmax: Float[Array, "batch time vocabulary"] | None = None  # logits without copying
    copies: F.Copies | None = None  # words that may be copied
    choices: F.Copies | None = None  # word of each of the K choices: `copies`, unless one was made

    def log_likelihood(self, targets: Int[Array, "batch time"]) -> Float[Array, "batch time"]:
        """Return log p of the targets, in nats; its expectation if all choices are copied."""
        if self.copies is None:
            return -optax.softmax_cross_entropy_with_integer_labels(self.logits, targets)
        of_softmax = self.log_likelihood_of_softmax(targets)
        has_one_gate = self.copies.gates.shape[-1] == 1
        if has_one_gate:
            return F.copied_log_likelihood(self.copies, of_softmax, targets)
        return F.chosen_log_likelihood_with_greedy_gates(self.copies, of_softmax, targets)

    def log_likelihood_of_softmax(
        self, targets: Int[Array, "batch time"]
    ) -> Float[Array, "batch time"]:
        """Return log p of the targets without copying, for models that copy words."""
        return -optax.softmax_cross_entropy_with_integer_labels(self.of_softmax, targets)

    def log_likelihood_of_each(
        self, targets: Int[Array, "batch time"]
    ) -> Float[Array, "batch time K"]:
        """Return log p of the targets given each of the K choices; for models that copy words."""
        of_softmax = self.log_likelihood_of_softmax(targets)
        return F.log_likelihood_of_each(self.choices, of_softmax, targets)


class LanguageModel(nnx.Module):
    """Language model with an embedding, recurrent layers and a softmax (Zaremba et al. 2014).

    Args:
        features: Size of the state of every layer, or one size for each layer.
        skip: Time skip of every layer, or one for each layer, bottom first.
        embedding: Module that maps token ids to features, with an attribute `features`, their
            number, such as `CharEmbedding`. By default an `nnx.Embed`.
        embedding_features: Size of the default embedding; by default the size of the first layer.
        tied: Whether the softmax uses the embedding table as its weights (Inan et al. 2017).
        copy: How recent words are copied, with the choice of the last layer's skip as the pointer:
            `none`, or as in `Copier`.
        restart_token: Id of the token with which every document begins. Before it is read the
            states are the initial ones again, and there is no word to copy, so nothing reaches into
            another document. None: each stream is one document.
        dropout: Dropout rates; a number is that of all layers' inputs and before the softmax
            (Zaremba et al. 2014, Section 3.2).
        dtype: Dtype of matrix multiplications, float32 by default. Everything else is float32.
        weight_init: Initializer of every weight and bias outside of the recurrent layers.
        **rnn_options: Arguments of `SkipRNN`, such as `num_layers`, `transition` and `depth_skip`.
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
        restart_token: int | None = None,
        dropout: float | LanguageModelDropout = 0.0,
        dtype: Any = None,
        weight_init: Initializer,
        rngs: nnx.Rngs,
        **rnn_options: Any,
    ):
        refuse("a language model", rnn_options, "reverse", "bidirectional")
        depth = count_layers(rnn_options.get("num_layers"), skip=skip, features=features)
        if isinstance(features, int):
            features = (features,) * depth
        last = features[-1]
        if not isinstance(dropout, LanguageModelDropout):
            dropout = LanguageModelDropout(inputs=dropout, hidden=dropout, outputs=dropout)
        self.dropout = dropout
        self.dtype = dtype
        self.tied = tied
        self.restart_token = restart_token

        if embedding is None:
            size = embedding_features or features[0]
            embedding = nnx.Embed(vocabulary_size, size, embedding_init=weight_init, rngs=rngs)
        if not isinstance(embedding, nnx.Embed) and (tied or dropout.words):
            raise UserError(
                "tied weights and dropped words need an embedding that is a table of words"
            )
        if tied and embedding.features != last:
            raise UserError(
                f"tied weights need an embedding of the last layer's size, {last}, "
                f"got {embedding.features}"
            )
        self.embedding = embedding

        self.stack = SkipRNN(
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

        # The skip of the last layer is the pointer, whose h the gate reads.
        self.copier = nnx.data(None)
        if copy != "none":
            self.copier = Copier(last, copy, weight_init=weight_init, dtype=dtype, rngs=rngs)

        # The softmax; a tied one has the table of embeddings as its matrix.
        if tied:
            self.bias = nnx.Param(weight_init(rngs.params(), (vocabulary_size,)))
        else:
            init = dict(kernel_init=weight_init, bias_init=weight_init)
            self.softmax = Linear(last, vocabulary_size, dtype=dtype, **init, rngs=rngs)

    def initialize_carry(self, batch_size: int, rngs: Rngs = None) -> Carry:
        """Return the initial carry of all streams; a `CopyCarry` if the model copies words."""
        layers = self.stack.initialize_carry(batch_size, rngs)
        if self.copier is None:
            return layers
        K = self.stack.cells[-1].skip.max_skip
        no_words = jnp.full((batch_size, K - 1), F.NO_WORD, jnp.int32)
        return CopyCarry(layers, no_words)

    def restart_carry(self, carry: Carry) -> Carry:
        """Return the carry with only the newest state of each layer, and without words to copy."""
        if self.copier is None:
            return self.stack.restart_carry(carry)
        layers = self.stack.restart_carry(carry.layers)
        no_words = jnp.full_like(carry.words, F.NO_WORD)
        return CopyCarry(layers, no_words)

    @staticmethod
    def steps_read(carry: Carry) -> Int[Array, " batch"]:
        """Return the number of steps since the carry was initialized or restarted, (batch,)."""
        layers = carry
        if isinstance(carry, CopyCarry):
            layers = carry.layers
        return layers[0].step

    def __call__(
        self,
        tokens: Int[Array, "batch time"],
        *,
        initial_carry: Carry | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        shared_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
        return_carry: bool = False,
    ) -> LanguageModelOutput | tuple[Carry, LanguageModelOutput]:
        """Read one segment of each stream.

        Args:
            initial_carry: Carry of the previous segment; by default that of `initialize_carry`.
            actions: See `SkipLayers`, like the other arguments that are not named here.
            rngs: Source of randomness for dropout, and for choices if the carry has no keys.
            shared_key: PRNG key for the masks that all streams share, those of words and weights;
                by default it is derived from `rngs`.
            return_carry: Whether to return `(carry, output)`, with the carry for the next segment.
        """
        if deterministic is None:
            deterministic = self.stack.deterministic
        policy = policy_or_default(policy, deterministic)

        words_key = weight_key = None
        if (self.dropout.words or self.dropout.weights) and not deterministic:
            rngs, words_key, weight_key = self._split_shared(rngs, shared_key)

        # A model that copies words needs those before the segment, so it always has a carry.
        layers = initial_carry
        earlier = None
        if self.copier is not None:
            layers, earlier = initial_carry or self.initialize_carry(len(tokens))

        # A document that begins at the first step of a new carry finds nothing to reset.
        begins = jnp.zeros(tokens.shape, bool)
        resets = None
        if self.restart_token is not None:
            begins = resets = tokens == self.restart_token
            if layers is None:
                resets = resets.at[:, 0].set(False)

        draws = needs_key(
            self.stack,
            policy,
            initial_carry=layers,
            actions=actions,
            weight_key=weight_key,
            deterministic=deterministic,
        )
        if not draws:
            rngs = None  # choices use the keys of the carry
        carry, read = self.stack(
            self._embed(tokens, words_key),
            initial_carry=layers,
            resets=resets,
            actions=actions,
            policy=policy,
            rngs=rngs,
            weight_key=weight_key,
            deterministic=deterministic,
            return_carry=True,
        )
        output = LanguageModelOutput(
            logits=self._logits(read.h),
            decisions=read.decisions,
            states=read.states,
            dropped_states=read.h,
            observations=read.observations,
        )
        if self.copier is not None:
            words, earlier = F.followers(tokens, earlier)
            steps = F.steps_since_start(layers[-1].step, begins)
            output = self._copied(output, words, steps, layers[-1], policy, deterministic)
            carry = CopyCarry(carry, earlier)
        if return_carry:
            return carry, output
        return output

    def _split_shared(
        self, rngs: Rngs, shared_key: Key[Array, ""] | None
    ) -> tuple[Rngs, Key[Array, ""], Key[Array, ""]]:
        """Return `rngs`, and the keys of two masks that all streams share: of words and of weights.

        Without `shared_key` they come from `rngs`, which is then returned as a key.
        """
        if shared_key is None:
            rngs = self.stack.require_key(rngs, "this model")
            shared_key = F.shared_key(rngs)
        words_key, weight_key = jax.random.split(shared_key)
        return rngs, words_key, weight_key

    def _copied(
        self,
        output: LanguageModelOutput,
        words: Int[Array, "batch time K"],
        steps: Int[Array, "batch time"],
        start: F.SkipCarry,
        policy: F.Policy,
        deterministic: bool,
    ) -> LanguageModelOutput:
        """Return the output with `words` copied.

        `start` is the top layer's carry before the segment, and `steps` are the numbers of
        steps before each step since its document began.
        """
        top = self.stack.cells[-1]
        policy = policy_of_each(policy, self.stack.skips)[-1]

        # A word of an earlier document is none.
        slots = jnp.arange(words.shape[-1])[None, None]
        words = jnp.where(slots <= steps[..., None], words, F.NO_WORD)
        choices = self.copier(
            top,
            start,
            output.observations[-1],
            output.dropped_states,
            words,
            steps,
            policy,
            restarts=self.restart_token is not None,
        )

        # In training, the loss uses the words of all K choices.
        copies = choices
        if deterministic and self.copier.is_hard(policy):
            copies = F.copy_of_choice(choices, output.decisions[-1].action)
        log_probs = F.copied_log_probs(copies, jax.nn.log_softmax(output.logits))
        return output._replace(
            logits=log_probs, of_softmax=output.logits, copies=copies, choices=choices
        )

    def _embed(
        self, tokens: Int[Array, "batch time"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch time features"]:
        """Return embedded tokens, in training with whole words dropped."""
        if key is None or self.dropout.words == 0.0:
            return self.embedding(tokens)
        # A word is a row of the table, so it is dropped in all its occurrences.
        table = F.dropout(key, self.dropout.words, self.embedding.embedding[...], (1,))
        return jnp.take(table, tokens, axis=0)

    def _logits(
        self, h: Float[Array, "batch time hidden"]
    ) -> Float[Array, "batch time vocabulary"]:
        """Return unnormalised log p of the next token, without copying."""
        if not self.tied:
            return self.softmax(h)
        table = self.embedding.embedding[...].astype(self.dtype or jnp.float32)
        return F.product(h, table.T) + self.bias[...][None, None]
