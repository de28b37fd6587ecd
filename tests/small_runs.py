"""Define a run of a few seconds for each experiment: its flags and its small data."""

import gzip
import json
from pathlib import Path

import numpy as np

_EVERY = "--features 4 --epochs 3 --devices 1"
_SENTENCES = "--embedding-features 3 --agent-features 2 --batch-size 8 --model dynamic:3"
_GENERATED = "--train-examples 60 --agent-features 2 --batch-size 20 --relaxed-epochs 1"
_TAGGERS = "--embedding-features 4 --batch-size 10 --characters none"
_FLAGS = {
    "agreement": f"{_GENERATED} --length 5 --model dynamic:4",
    "classify": _SENTENCES,
    "code": "--agent-features 2 --num-layers 1 --num-steps 5 --batch-size 4 --model dynamic:3",
    "conll2003": f"{_TAGGERS} --model lstm",
    "imdb": f"{_SENTENCES} --max-length 6",
    "number_prediction": f"{_GENERATED} --model dynamic:5",
    "pos": f"{_TAGGERS} --dataset columns --model dynamic:3",
    "ptb": (
        "--agent-features 2 --num-layers 1 --num-steps 5 --batch-size 4 --dropout 0.2 "
        "--model dynamic:3"
    ),
    "recall": f"{_GENERATED} --length 32 --model dynamic:9",
    "sick": _SENTENCES,
    "sst": f"{_SENTENCES} --no-phrases",
}
_TAGGED = """
EU/I-ORG rejects/O German/I-MISC call/O
Peter/I-PER Blackburn/I-PER
The/O European/I-ORG Commission/I-ORG said/O on/O Thursday/O
Germany/I-LOC imported/O 47,600/O sheep/O
Bonn/I-LOC London/B-LOC talks/O
Hendrix/I-PER died/O in/O 1970/O
China/I-LOC and/O Taiwan/I-LOC
Taipei/I-LOC has/O denied/O it/O
""".strip().splitlines()
_RATED = {0: ("awful", "bad", "dull"), 1: ("fine", "great", "lovely")}
_WORDS = ("a", "film", "the", "it", "was", "with")
NAMES = tuple(_FLAGS)


def command(name: str, folder: Path) -> list[str]:
    """Return an experiment's command line without `--run-dir`, and write its data to `folder`."""
    data = ["--data", str(folder / "data")] if write_data(name, folder / "data") else []
    return [name, *data, *_EVERY.split(), *_FLAGS[name].split()]


def write_data(name: str, folder: Path) -> bool:
    """Write the data of an experiment; return False if it generates its data."""
    files = _files(name, np.random.default_rng(0))
    for path, text in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        if path.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        (folder / path).write_bytes(content)
    return bool(files)


def shrink_generated_data() -> None:
    """Limit generated dev and test splits to 20 examples in this process."""
    from dynskip_jax.data import agreement, number_prediction, recall

    for module in (agreement, number_prediction, recall):
        module.DEFAULT_SIZES = {**module.DEFAULT_SIZES, "dev": 20, "test": 20}


def _files(name: str, rng: np.random.Generator) -> dict[str, str]:
    """Return the files of an experiment's data by name; none if it generates its data."""

    def review(label: int, length: int = 3) -> list[str]:
        return list(rng.permutation([*rng.choice(_WORDS, length), rng.choice(_RATED[label])]))

    def tree(label: int) -> str:
        *words, text = review(int(label > 2))
        text = f"({label} {text})"
        for word in words:
            text = f"({label} (2 {word}) {text})"
        return text

    def pair(number: int) -> str:
        texts = [" ".join(review(int(label))) for label in rng.integers(2, size=2)]
        return "\t".join([str(number), *texts, f"{rng.uniform(1, 5):.1f}", "NEUTRAL"])

    def columns(lines: list[str]) -> str:
        pairs = [[pair.rpartition("/")[::2] for pair in line.split()] for line in lines]
        return "\n".join("".join(f"{word} NN I-NP {tag}\n" for word, tag in line) for line in pairs)

    def splits(
        names: tuple[str, ...], rows: tuple[int, ...], make, head: str = ""
    ) -> dict[str, str]:
        texts = ["".join(f"{make(number)}\n" for number in range(size)) for size in rows]
        return {n: head + text for n, text in zip(names, texts, strict=True)}

    def imdb_row(i: int) -> str:
        return json.dumps({"text": " ".join(review(i // 15, 2 + i % 5)), "label": i // 15})

    def classify_row(i: int) -> str:
        return f"{' '.join(review(i % 2, 2 + i % 5))}\t{('bad', 'good')[i % 2]}"

    def code_line(i: int) -> str:
        return f"{rng.choice(_WORDS)}_{i} = {' + '.join(rng.choice(_WORDS, 3))}\n"

    if name in ("conll2003", "pos"):
        names = ("train.txt", "dev.txt", "test.txt")
        if name == "conll2003":
            names = ("eng.train", "eng.testa", "eng.testb")
        parts = (_TAGGED, _TAGGED[:4], _TAGGED[4:])
        return {n: columns(part) for n, part in zip(names, parts, strict=True)}
    if name == "imdb":
        return splits(("train.jsonl.gz", "test.jsonl.gz"), (30, 30), imdb_row)
    if name == "classify":
        names = ("train.tsv", "valid.tsv", "test.tsv")
        return splits(names, (24, 12, 12), classify_row, "text\tlabel\n")
    if name == "sick":
        names = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
        head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        return splits(names, (16, 16, 16), pair, head)
    if name == "sst":
        names = ("train.txt", "dev.txt", "test.txt")
        return splits(names, (16, 10, 10), lambda i: tree(int(rng.integers(5))))
    if name == "code":
        return {f"module{n}.py": "".join(map(code_line, range(8))) for n in range(8)}
    if name == "ptb":
        names = ("train.txt", "valid.txt", "test.txt")
        return splits(names, (72, 8, 8), lambda i: " ".join(rng.choice(list("abcdefgh"), 4)))
    return {}
