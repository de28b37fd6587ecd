"""Read a file of source code with a trained model: what it predicts, and from where it copies."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from dynskip_jax import functional as F
from dynskip_jax.data.files import read_file
from dynskip_jax.data.source_code import LARGEST_FILE, code_text, code_tokens
from dynskip_jax.data.vocabularies import CodeToken, CodeVocabulary
from dynskip_jax.runs.load import Trained
from dynskip_jax.terminal.messages import bad_file

_STEPS = 256  # read in one call


class Predictions(NamedTuple):
    """Predictions of successive tokens; the last two are None if the model does not copy."""

    probs: Float[Any, "time vocabulary"]
    probs_without: Float[Any, "time vocabulary"]  # without copying
    words: Int[Any, "time K"] | None  # the token that followed State(t-k), from k = 1
    copying: Float[Any, "time K"] | None  # probability of copying it

    def copied(self, t: int, token: int) -> tuple[float, int]:
        """Return the probability with which a token is copied, and k with the most of it, or 0.

        If tokens[n] of a file is predicted, it is copied from tokens[n - k].
        """
        if self.words is None:
            return 0.0, 0
        shares = np.where(self.words[t] == token, self.copying[t], 0)
        return float(shares.sum()), int(shares.argmax()) + 1 if shares.any() else 0


class CodeBefore(NamedTuple):
    """What is before a place in a file."""

    tokens: list[CodeToken]
    typed: str = ""  # the beginning of a name or a keyword that ends at the place


def read_code_file(file: str) -> tuple[str, str]:
    """Return the name and the text of a file; `-` is standard input, as Python."""
    name = "-.py" if file == "-" else Path(file).name
    if file == "-":
        content = sys.stdin.buffer.read()
    else:
        content = read_file(Path(file).expanduser(), LARGEST_FILE)
    try:
        return name, code_text(name, content)
    except Exception:  # no decoder says what it may raise
        raise bad_file(file, "is no text: name a file of source code in UTF-8") from None


def code_before(name: str, text: str, offset: int) -> CodeBefore:
    """Return what is before a character of a file, which may be unfinished."""
    found: list[CodeToken] = []
    try:
        for token in code_tokens(name, text):
            typed = text[token.start : offset]
            if token.start < offset <= token.stop and (token.is_name or typed.isidentifier()):
                return CodeBefore(found, typed)
            if token.start >= offset or token.stop > offset:
                break
            found.append(token)
    except (SyntaxError, TokenError):
        pass  # at the end of what can be read
    except Exception as error:  # no lexer says what it may raise
        remedy = "its name has to end like .py or .js"
        raise bad_file(name, f"is in no language that can be read ({error}): {remedy}") from None
    return CodeBefore(found)


def names_of_numbers(vocabulary: CodeVocabulary, tokens: Sequence[CodeToken]) -> dict[str, set]:
    """Return which names of a file each numbered name stands for: several, if it has many names."""
    found: dict[str, set] = {}
    for number, token in zip(vocabulary.number(tokens), tokens, strict=True):
        if number.startswith("<name-"):
            found.setdefault(number, set()).add(token.text)
    return found


def place(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column, from 1, of a character."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def predictions(trained: Trained, tokens: Sequence[CodeToken]) -> Iterator[Predictions]:
    """Yield the predictions of all tokens of a file, and of the one after them, in parts."""
    vocabulary = trained.vocabulary
    inputs = vocabulary.encode([vocabulary.start, *vocabulary.number(tokens)])
    definition, state = nnx.split(trained.model)
    carry = trained.model.initialize_carry(1, jax.random.key(0))
    # Parts of one size, the last padded, so that one program reads a file of any length.
    for start in range(0, len(inputs), _STEPS):
        part = inputs[start : start + _STEPS]
        padded = np.pad(part, (0, _STEPS - len(part)))
        carry, found = _read(definition, state, trained.policy, carry, padded)
        # Cut on the host: each length would be a program of its own.
        yield Predictions(
            *(leaf if leaf is None else np.asarray(leaf)[: len(part)] for leaf in found)
        )


@partial(jax.jit, static_argnums=0)
def _read(
    definition: nnx.GraphDef, state: Any, policy: F.Policy, carry: Any, part: Int[Any, "time"]
) -> tuple[Any, Predictions]:
    """Return the carry after a part of a file, and the predictions after each of its tokens."""
    model = nnx.merge(definition, state)
    key = jax.random.key(0)
    how = dict(policy=policy, rngs=key, deterministic=True, return_carry=True)
    carry, output = model(part[None], initial_carry=carry, **how)
    probs = jax.nn.softmax(output.logits[0])
    copies = output.copies
    if copies is None:
        return carry, Predictions(probs, probs, None, None)
    words = output.choices.words[0]
    copying = copies.weights[0] * jax.nn.sigmoid(copies.gates[0])
    if copies is not output.choices:  # one of them was chosen
        slots = jnp.arange(words.shape[1])[None] + 1
        copying = jnp.where(slots == output.decisions[-1].action[0][:, None], copying, 0)
    return carry, Predictions(probs, jax.nn.softmax(output.of_softmax[0]), words, copying)
