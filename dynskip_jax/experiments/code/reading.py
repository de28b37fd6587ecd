"""Read a file of source code with a trained model: what it predicts, and from where it copies."""

import bisect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from dynskip_jax.data.messages import bad_file
from dynskip_jax.data.source_code import code_text, code_tokens
from dynskip_jax.data.vocabularies import CodeToken
from dynskip_jax.errors import UserError
from dynskip_jax.trained import Trained

_STEPS = 256  # read in one call


class Predictions(NamedTuple):
    """Predictions of successive tokens, NumPy arrays; the last two are None if the model does not copy."""

    log_probs: Float[np.ndarray, "time vocabulary"]
    log_probs_without: Float[np.ndarray, "time vocabulary"]  # without copying
    words: Int[np.ndarray, "time K"] | None  # token that followed State(t-k), from k = 1
    copying: Float[np.ndarray, "time K"] | None  # probability of copying it


def read_code_file(file: str) -> tuple[str, str]:
    """Return the name and the text of a file; `-` is standard input, which is read as Python."""
    path = Path(file).expanduser()
    try:
        if file == "-":
            stream: Any = getattr(sys.stdin, "buffer", sys.stdin)
            content = stream.read()
            return "-.py", code_text("-.py", content if isinstance(content, bytes) else content.encode())
        return path.name, code_text(path.name, path.read_bytes())
    except OSError as error:
        raise bad_file(file, f"cannot be read ({error.strerror or error}): check its name") from None
    except (ValueError, SyntaxError):
        raise bad_file(file, "is no text: name a file of source code in UTF-8") from None


def tokens_before(name: str, text: str, offset: int) -> list[CodeToken]:
    """Return the tokens before a character of a file, which may be unfinished."""
    found = []
    try:
        for token in code_tokens(name, text):
            if token.stop > offset or token.start >= offset:
                break
            found.append(token)
    except (SyntaxError, TokenError):  # at the end of what can be read
        pass
    except ValueError:
        raise bad_file(name, "is in no language that is known: its name has to end like .py or .js") from None
    return found


class Lines:
    """The line and the column, from 1, of each character of a text."""

    def __init__(self, text: str):
        self._starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of a character."""
        line = bisect.bisect_right(self._starts[:-1], offset)
        return line, offset - self._starts[line - 1] + 1

    def offset(self, file: str, line: int | None, column: int | None) -> int:
        """Return a character by its place: by default the end of the line, and the end of the text."""
        count = len(self._starts) - 1
        if line is None:
            return self._starts[-1] - 1
        if not 1 <= line <= count:
            raise UserError(f"{file} has {count:,} lines: there is no line {line:,}")
        length = self._starts[line] - self._starts[line - 1]
        if column is not None and not 1 <= column <= length:
            raise UserError(f"line {line:,} of {file} has {length - 1:,} characters: no column {column:,}")
        return self._starts[line - 1] + (length if column is None else column) - 1


def predictions(trained: Trained, tokens: Sequence[CodeToken]) -> Iterator[Predictions]:
    """Yield the predictions of all tokens of a file, and of the one after them, in parts."""
    vocabulary, key = trained.vocabulary, jax.random.key(0)
    inputs = vocabulary.encode([vocabulary.start, *vocabulary.number(tokens)])

    @jax.jit
    def read(params: Any, carry: Any, part: Any) -> tuple[Any, Predictions]:
        how = dict(policy=trained.policy, rngs=key, deterministic=True, return_carry=True)
        carry, output = trained.learner.model(params)(part[None], initial_carry=carry, **how)
        log_probs, copies = jax.nn.log_softmax(output.logits), output.copies
        if copies is None:
            return carry, Predictions(log_probs, log_probs, None, None)
        copying = copies.weights * jax.nn.sigmoid(copies.gates)
        return carry, Predictions(log_probs, jax.nn.log_softmax(output.of_softmax), copies.words, copying)

    carry = trained.model.initialize_carry(1, key)
    for start in range(0, len(inputs), _STEPS):
        part = inputs[start : start + _STEPS]
        count = len(part)
        carry, found = read(trained.params, carry, jnp.asarray(np.pad(part, (0, _STEPS - count))))
        yield Predictions(*(leaf if leaf is None else np.asarray(leaf)[0, :count] for leaf in found))


def copied(found: Predictions, t: int, token: int) -> tuple[float, int]:
    """Return the probability with which a token is copied at step t of a part, and the k with most of it.

    If tokens[n] is predicted, that is the one of tokens[n - k]. Nothing is copied if k is 0.
    """
    if found.words is None:
        return 0.0, 0
    shares = np.where(found.words[t] == token, found.copying[t], 0)
    return float(shares.sum()), int(shares.argmax()) + 1 if shares.any() else 0
