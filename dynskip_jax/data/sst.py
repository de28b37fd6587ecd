"""Read the Stanford Sentiment Treebank (Socher et al. 2013): trees with one of five labels at each node."""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynskip_jax.data.brackets import tree_pieces
from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.messages import bad_file, bad_line, quoted
from dynskip_jax.data.sentences import Labelled
from dynskip_jax.data.text import read_lines
from dynskip_jax.errors import UserError

NAME = "sst"
LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
FILES: Mapping[str, str] = {"train": "train.txt", "dev": "dev.txt", "test": "test.txt"}
UPSTREAM_URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
_BRACKETS = {"-lrb-": "(", "-rrb-": ")"}


def read_trees(path: str | os.PathLike[str]) -> list[list[Labelled]]:
    r"""Read a file with one tree on each line, such as `(3 (2 It) (4 shines))`.

    Words are converted to lower case. Brackets become `(` and `)`, whether the file escapes them (`-LRB-`) or
    not, and `\/` becomes a slash.

    Args:
        path: Text file, plain or .gz.

    Returns:
        All nodes of each tree, in the order in which they open; the first one is the whole sentence.

    Raises:
        UserError: If the file cannot be read, or a line is not such a tree; the message names the line.
    """
    trees = []
    for number, line in enumerate(read_lines(path, blank_lines=True), 1):
        if line.strip():
            trees.append(_tree(number, line, path))
    return trees


def _tree(number: int, line: str, path: str | os.PathLike[str]) -> list[Labelled]:
    """Return the nodes of the tree on a line."""
    nodes: list[tuple[int, int]] = []  # label and index of the first word
    spans: dict[int, int] = {}  # from a node to the index after its last word
    open_nodes: list[int] = []
    words: list[str] = []
    for piece in tree_pieces([(number, line)], functools.partial(bad_line, path)):
        if piece.kind == "close":
            spans[open_nodes.pop()] = len(words)
            continue
        if nodes and not open_nodes:
            raise bad_line(path, number, "a second tree begins: each line has one")
        if piece.label not in ("0", "1", "2", "3", "4"):
            raise bad_line(
                path, number, f"{quoted(piece.label)} is no label: 0, 1, 2, 3 or 4 follows a bracket"
            )
        nodes.append((int(piece.label), len(words)))
        if piece.kind == "open":
            open_nodes.append(len(nodes) - 1)
        else:
            leaf = piece.word.lower().replace("\\/", "/").split()  # a leaf may contain a no-break space
            if not leaf:
                raise bad_line(path, number, "a node has no words")
            words += [_BRACKETS.get(word, word) for word in leaf]
            spans[len(nodes) - 1] = len(words)
    return [Labelled(words[start : spans[i]], label) for i, (label, start) in enumerate(nodes)]


def read_sst(folder: str | os.PathLike[str]) -> dict[str, list[list[Labelled]]]:
    """Read the trees of `train`, `dev` and `test` from a folder; see `read_trees`.

    Raises:
        UserError: If a file is missing or invalid.
    """
    folder = Path(folder)
    found = {}
    for split, name in FILES.items():
        paths = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        if not paths:
            raise bad_file(folder, f"has no {name}: put the trees of {UPSTREAM_URL} there")
        found[split] = read_trees(paths[0])
    return found


def sst_splits(
    trees: Mapping[str, Sequence[Sequence[Labelled]]], *, phrases: bool
) -> dict[str, list[Labelled]]:
    """Return the examples of each split: its sentences, and in train optionally all phrases.

    Args:
        trees: Trees of each split, from `read_sst`.
        phrases: Whether train contains every node of every tree; dev and test contain only whole sentences.
    """
    return {
        split: [node for tree in own for node in (tree if phrases and split == "train" else tree[:1])]
        for split, own in trees.items()
    }


def find_sst(
    data: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, list[list[Labelled]]], str]:
    """Read the corpus from `data`, or from the sub-folder sst of `$DYNSKIP_DATA_DIR` if `data` is None.

    Returns:
        The trees of each split, and a phrase that describes where they were found.

    Raises:
        UserError: If there is no such folder, or a file is missing or invalid.
    """
    folder = named_folder(NAME, environ) if data is None else Path(data).expanduser()
    if folder is None:
        raise UserError(
            f"the Stanford Sentiment Treebank was not found: put train.txt, dev.txt and test.txt of "
            f"{UPSTREAM_URL} into a folder and name it with --data DIR, or into ${DATA_VARIABLE}/{NAME}"
        )
    return read_sst(folder), f"the folder {folder}"
