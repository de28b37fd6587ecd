"""Read a file of source code with a trained model: what it predicts, and from where it copies."""

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
from dynskip_jax.trained import Trained

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


def read_code_file(file: str) -> tuple[str, str]:
    """Return the name and the text of a file; `-` is standard input, as Python."""
    path = Path("-.py" if file == "-" else file).expanduser()
    try:
        content = sys.stdin.read().encode() if file == "-" else path.read_bytes()
        return path.name, code_text(path.name, content)
    except OSError as error:
        raise bad_file(
            file, f"cannot be read ({error.strerror or error}): check its name and permissions"
        ) from None
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
        raise bad_file(
            name, "is in no language that is known: its name has to end like .py or .js"
        ) from None
    return found


def place(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column, from 1, of a character."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def predictions(trained: Trained, tokens: Sequence[CodeToken]) -> Iterator[Predictions]:
    """Yield the predictions of all tokens of a file, and of the one after them, in parts."""
    vocabulary = trained.vocabulary
    key = jax.random.key(0)
    inputs = vocabulary.encode([vocabulary.start, *vocabulary.number(tokens)])

    # Parameters are an argument: as constants they would be compiled into the program.
    @jax.jit
    def read(params: Any, carry: Any, part: Any) -> tuple[Any, Predictions]:
        how = dict(policy=trained.policy, rngs=key, deterministic=True, return_carry=True)
        carry, output = trained.learner.model(params)(part[None], initial_carry=carry, **how)
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

    # Parts of one size, the last padded, so that one program reads a file of any length.
    carry = trained.model.initialize_carry(1, key)
    for start in range(0, len(inputs), _STEPS):
        part = inputs[start : start + _STEPS]
        carry, found = read(
            trained.params, carry, jnp.asarray(np.pad(part, (0, _STEPS - len(part))))
        )
        yield Predictions(
            *(leaf if leaf is None else np.asarray(leaf[: len(part)]) for leaf in found)
        )
