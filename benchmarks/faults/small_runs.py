"""Define a run of a few seconds for each experiment: its flags and its small data."""

import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynskip_jax.data import NumberPredictionData, agreement
from dynskip_jax.data.number_prediction import generate_splits

_SIZES = {"train": 60, "dev": 20, "test": 20}
_EVERY = ("--features", 4, "--epochs", 3, "--devices", 1)
_SENTENCES = ("--embedding-features", 3, "--buckets", 1, "--agent-features", 2, "--batch-size", 8)
_TAGGERS = ("--embedding-features", 4, "--batch-size", 10, "--characters", "none")
_TAGGED = """
EU/I-ORG rejects/O German/I-MISC call/O
Peter/I-PER Blackburn/I-PER
BRUSSELS/I-LOC 1996-08-22/O
The/O European/I-ORG Commission/I-ORG said/O on/O Thursday/O
Germany/I-LOC imported/O 47,600/O sheep/O
Bonn/I-LOC London/B-LOC talks/O
Fischler/I-PER proposed/O it/O in/O France/I-LOC
Hendrix/I-PER died/O in/O 1970/O
China/I-LOC and/O Taiwan/I-LOC
Taipei/I-LOC has/O denied/O it/O
""".strip().splitlines()
_RATED = {0: ("awful", "bad", "dull"), 1: ("fine", "great", "lovely")}
_WORDS = ("a", "film", "the", "it", "was", "with")


class SmallRun(NamedTuple):
    """A run of an experiment at a tiny size.

    Attributes:
        write_data: Function that writes the data into a folder; None if the experiment generates its data.
        flags: Command-line flags, without `--data` and `--run-dir`.
        text: Text for `explain`; None for its sample.
    """

    write_data: Callable[[Path], None] | None
    flags: tuple[object, ...]
    text: str | None = None

    def arguments(self, data: Path) -> list[str]:
        """Return the command-line flags, without `--run-dir`; write the data to `data` if it is missing."""
        flags = [*map(str, _EVERY), *map(str, self.flags)]
        if self.write_data is None:
            return flags
        if not data.exists():
            data.mkdir(parents=True)
            self.write_data(data)
        return ["--data", str(data), *flags]


def shrink_generated_data() -> None:
    """Limit the generated data of agreement and number prediction to 100 examples in this process."""
    from dynskip_jax import data

    agreement.DEFAULT_SIZES = _SIZES
    data.load_number_prediction = _small_number_prediction


def _small_number_prediction(length: int, **options: object) -> NumberPredictionData:
    name = f"number_prediction/length_{length}"
    return NumberPredictionData(name, generate_splits(length, 0, _SIZES), "made for fault injection")


def _write_letters(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split, lines in (("train", 72), ("valid", 8), ("test", 8)):
        words = rng.choice(list("abcdefgh"), size=(lines, 4))
        (folder / f"{split}.txt").write_text("".join(f"{' '.join(row)}\n" for row in words))


def _write_columns(folder: Path, names: tuple[str, str, str]) -> None:
    for name, sentences in zip(names, (_TAGGED, _TAGGED[:4], _TAGGED[4:8]), strict=True):
        pairs = [[pair.rpartition("/")[::2] for pair in sentence.split()] for sentence in sentences]
        blocks = ["".join(f"{word} NN I-NP {tag}\n" for word, tag in sentence) for sentence in pairs]
        (folder / name).write_text("\n".join(blocks))


def _review(rng: np.random.Generator, label: int, length: int) -> str:
    words = [*rng.choice(_WORDS, length), rng.choice(_RATED[label])]
    return " ".join(rng.permutation(words))


def _write_reviews(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        with gzip.open(folder / f"{split}.jsonl.gz", "wt") as file:
            for number in range(30):
                label = int(number >= 15)
                text = _review(rng, label, 2 + number % 5)
                file.write(json.dumps({"text": text, "label": label}) + "\n")


def _write_classes(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for name, size in (("train", 24), ("valid", 12), ("test", 12)):
        rows = [f"{_review(rng, n % 2, 2 + n % 5)}\t{('bad', 'good')[n % 2]}" for n in range(size)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")


def _write_pairs(folder: Path) -> None:
    rng = np.random.default_rng(2)
    for name in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        for number in range(16):
            pair = [_review(rng, int(label), 3) for label in rng.integers(2, size=2)]
            rows.append("\t".join([str(number), *pair, f"{rng.uniform(1, 5):.1f}", "NEUTRAL"]))
        (folder / name).write_text("\r\n".join(rows) + "\r\n")


def _write_trees(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for name, size in (("train", 16), ("dev", 10), ("test", 10)):
        lines = []
        for label in rng.integers(5, size=size):
            words = _review(rng, int(label > 2), 3).split()
            tree = f"({label} {words[-1]})"
            for word in reversed(words[:-1]):
                tree = f"({label} (2 {word}) {tree})"
            lines.append(tree)
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


_write_conll = functools.partial(_write_columns, names=("eng.train", "eng.testa", "eng.testb"))
_write_tagged = functools.partial(_write_columns, names=("train.txt", "dev.txt", "test.txt"))

SMALL_RUNS = {
    "agreement": SmallRun(
        None,
        (
            *("--length", 5, "--train-examples", 60, "--agent-features", 2, "--batch-size", 20),
            *("--model", "dynamic:4", "--relaxed-epochs", 1),
        ),
    ),
    "classify": SmallRun(_write_classes, (*_SENTENCES, "--model", "dynamic:3")),
    "conll2003": SmallRun(_write_conll, (*_TAGGERS, "--model", "lstm")),
    "imdb": SmallRun(_write_reviews, (*_SENTENCES, "--max-length", 6, "--model", "dynamic:3")),
    "number_prediction": SmallRun(
        None, ("--agent-features", 2, "--batch-size", 20, "--model", "dynamic:5", "--relaxed-epochs", 1)
    ),
    "pos": SmallRun(_write_tagged, (*_TAGGERS, "--dataset", "columns", "--model", "dynamic:3")),
    "ptb": SmallRun(
        _write_letters,
        (
            *("--agent-features", 2, "--num-layers", 1, "--num-steps", 5, "--batch-size", 4),
            *("--dropout", 0.2, "--model", "dynamic:3"),
        ),
        "a b c d e f g h",
    ),
    "sick": SmallRun(_write_pairs, (*_SENTENCES, "--model", "dynamic:3", "--similarity-features", 5)),
    "sst": SmallRun(_write_trees, (*_SENTENCES, "--model", "dynamic:3", "--no-phrases")),
}
