"""What a text takes when words that are not read cost nothing: Skip RNN and LSTM-Jump, one text at a time.

    python -m benchmarks.reading --run-dir DIR --data DIR

The models of a finished run of `experiments.imdb` or `experiments.sst` classify test texts twice. The unroll
that training uses takes a step for every word. `functional.skim` takes a step only for every word that is
read. Both give the same classes up to rounding, and the share of equal classes is reported. Each text is a
batch of its own, as when texts arrive one by one. A model that reads every word has only the first figure.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from benchmarks import machine
from benchmarks.measure import number, ratio, take_turns
from benchmarks.results import write
from dynskip_jax import functional as F
from dynskip_jax.data import Batch, Examples
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.experiments.loaded import LoadedModel, data_of, finished_models, one_of
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.settings import path_setting, setting
from dynskip_jax.training.progress import Progress

_SEED = 0  # seed for sampling the texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Command line."""

    run_dir: str = path_setting(help="A finished run folder of texts with a class each.")
    data: str | None = path_setting(None, "Folder of its data.")
    texts: int = setting(100, "Test texts, the same ones in each round.", at_least=1)
    rounds: int = setting(7, "How often each is measured.", at_least=1)
    out: str | None = path_setting(None, "Folder for reading.json and reading.md.")


class Result(NamedTuple):
    """Results of one model.

    Attributes:
        model: Name of the model.
        read: Fraction of the words that the model reads.
        same: Fraction of the texts with the same class in both ways.
        unrolled: Milliseconds per text with a step for every word, (rounds,).
        skipping: Milliseconds per text with a step only for every word read, (rounds,); None if the model
            reads every word.
    """

    model: str
    read: float
    same: float
    unrolled: Float[np.ndarray, " rounds"]
    skipping: Float[np.ndarray, " rounds"] | None


def unrolled(
    model: SequenceClassifier, tokens: Int[Array, "1 time"], length: Int[Array, " 1"], policy: F.Policy
) -> Float[Array, "1 classes"]:
    """Return the logits of one text, with a step for every word."""
    return model(tokens, seq_lengths=length, policy=policy).logits


def skipping(
    model: SequenceClassifier, tokens: Int[Array, "1 time"], length: Int[Array, " 1"], policy: F.Policy
) -> tuple[Float[Array, "1 classes"], Int[Array, ""]]:
    """Return the logits of one text, with a step only for every word read, and the number of words."""
    cell, x = model.stack.cells[0], model.embedding(tokens)
    start = cell.initialize_carry(x[:, 0].shape)
    _, reading = F.skim(cell.params(), start, x, cell.recurrence, seq_lengths=length, policy=policy)
    pooled = F.pool_states(reading.h, F.length_mask(length, tokens.shape[1]), model.pooling)
    return model.softmax(pooled), reading.read.sum()


def one_by_one(examples: Examples, count: int) -> list[Batch]:
    """Return `count` random texts, the same at each call, each as a batch padded to its bucket's length."""
    chosen = np.random.default_rng(_SEED).permutation(len(examples))[:count]
    buckets = examples.bucket_of_each()
    return [examples.batch(np.array([i]), None, int(buckets[i])) for i in chosen]


def measure(
    trained: LoadedModel, texts: Sequence[Batch], rounds: int, advance: Callable[[float], None]
) -> Result:
    """Measure a model on these texts.

    Args:
        trained: Model with one layer and one direction.
        texts: Texts to read, each as a batch.
        rounds: Number of turns of each way of reading.
        advance: Function called after each turn with the turn's fraction of the work.

    Raises:
        UserError: If the model has several layers or two directions.
    """
    cells = trained.model.stack.cells
    if len(cells) > 1:
        raise UserError(f"{trained.name} has {len(cells)} layers or directions; words are left out by one")
    graphdef, state = nnx.split(trained.model)
    arrays = [(jnp.asarray(text.inputs), jnp.asarray(text.seq_lengths)) for text in texts]
    policy = dataclasses.replace(trained.policy, mode="greedy")

    def compiled(read: Callable[..., Any]) -> Callable[[], list[Any]]:
        step = jax.jit(lambda state, *text: read(nnx.merge(graphdef, state), *text, policy))
        return lambda: jax.block_until_ready([step(state, *text) for text in arrays])

    steps = {"unrolled": compiled(unrolled)}
    words = read = sum(int(text.seq_lengths.sum()) for text in texts)
    same = 1.0
    if not cells[0].skip.writes_all:
        steps["skipping"] = compiled(skipping)
        found = steps["skipping"]()
        read = sum(int(count) for _, count in found)
        pairs = zip(steps["unrolled"](), found, strict=True)
        same = float(np.mean([one.argmax() == other.argmax() for one, (other, _) in pairs]))
    times = take_turns(steps, rounds, lambda: advance(1 / (rounds * len(steps))))
    of_text = {name: values / len(texts) for name, values in times.items()}
    return Result(trained.name, read / words, same, of_text["unrolled"], of_text.get("skipping"))


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    headings = ("model", "words read", "ms, every word", "ms, really skipping", "ratio", "same answers")
    lines = [f"| {' | '.join(headings)} |", "| --- " * len(headings) + "|"]
    for result in results:
        cells = [result.model, f"{result.read:.1%}", number(float(np.median(result.unrolled)))]
        if result.skipping is None:
            cells += [""] * 3
        else:
            cells += [number(float(np.median(result.skipping))), str(ratio(result.skipping, result.unrolled))]
            cells.append(f"{result.same:.1%}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all models of a run folder, print the results, and write them to files."""
    flags = read_flags("python -m benchmarks.reading", __doc__, Flags, sys.argv[1:])
    about, models = machine.describe("default", False), finished_models(flags.run_dir)
    for found in models.values():
        if not isinstance(one_of(found, None).model, SequenceClassifier) or found.vocabulary is None:
            raise UserError(
                f"{flags.run_dir} holds no run of texts with a class each, such as experiments.imdb's"
            )
    texts = one_by_one(data_of(next(iter(models.values())), flags.data).splits["test"], flags.texts)
    results = []
    with Progress(len(models), "reading") as progress:
        for found in models.values():
            results.append(measure(one_of(found, None), texts, flags.rounds, progress.advance))
    written = f"{machine.one_line(about)}; {len(texts):,} texts, one at a time\n\n{table(results)}"
    print(written)
    if flags.out is not None:
        figures = [
            {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
            for row in (result._asdict() for result in results)
        ]
        write(flags.out, "reading", {"about": about, "results": figures}, written)


if __name__ == "__main__":
    run_main(main)
