"""The Stanford Sentiment Treebank (Socher et al. 2013): trees whose every node has one of five labels."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.sentences import Labelled, numbered_lines
from dynskip_jax.data.text import read_lines
from dynskip_jax.errors import UserError

NAME = "sst"
LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
FILES: Mapping[str, str] = {"train": "train.txt", "dev": "dev.txt", "test": "test.txt"}
UPSTREAM_URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
_PIECE = re.compile(r"\(\s*([^\s()]*)|\)|[^\s()]+")
_BRACKETS = {"-lrb-": "(", "-rrb-": ")"}


def read_trees(path: str | os.PathLike[str]) -> list[list[Labelled]]:
    r"""Reads a file with a tree on each line, as in `(3 (2 It) (4 shines))`.

    Words become lower-case, brackets are `(` and `)`, and `\/` is a slash.

    Args:
        path: the file, plain or .gz.

    Returns:
        Of each tree all its nodes, the sentence itself first and then in the order in which they open.

    Raises:
        UserError: the file cannot be read, or a line is no such tree; the message names the line.
    """
    trees = []
    for _, line, bad in numbered_lines(read_lines(path, blank_lines=True), path):
        if not line.strip():
            continue
        nodes: list[tuple[int, int]] = []  # label, and where its words begin
        spans: dict[int, int] = {}  # where those of a node end
        open_nodes: list[int] = []
        words: list[str] = []
        for found in _PIECE.finditer(line):
            piece = found[0]
            if piece.startswith("("):
                if nodes and not open_nodes:
                    raise bad("a second tree begins: each line has one")
                if found[1] not in ("0", "1", "2", "3", "4"):
                    raise bad(f"{found[1]!r} is no label: 0, 1, 2, 3 or 4 follows a bracket")
                open_nodes.append(len(nodes))
                nodes.append((int(found[1]), len(words)))
            elif not open_nodes:
                raise bad(f"{piece!r} stands outside of all brackets")
            elif piece == ")":
                node = open_nodes.pop()
                if nodes[node][1] == len(words):
                    raise bad("a node has no words")
                spans[node] = len(words)
            else:
                word = piece.lower().replace("\\/", "/")
                words.append(_BRACKETS.get(word, word))
        if open_nodes:
            raise bad(f"{len(open_nodes)} brackets are not closed")
        trees.append([Labelled(words[start : spans[i]], label) for i, (label, start) in enumerate(nodes)])
    return trees


def read_sst(folder: str | os.PathLike[str]) -> dict[str, list[list[Labelled]]]:
    """Reads the trees of `train`, `dev` and `test`; see `read_trees`.

    Raises:
        UserError: a file is missing or not as it should be.
    """
    folder = Path(folder)
    found = {}
    for split, name in FILES.items():
        paths = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        if not paths:
            raise UserError(f"{folder} has no {name}: put the trees of {UPSTREAM_URL} there")
        found[split] = read_trees(paths[0])
    return found


def sst_splits(
    trees: Mapping[str, Sequence[Sequence[Labelled]]], *, phrases: bool
) -> dict[str, list[Labelled]]:
    """Returns what is trained on and scored: sentences, in train also the phrases that they are made of.

    Args:
        trees: of each split, from `read_sst`.
        phrases: train on every node of every tree; dev and test are sentences alone in any case.
    """
    return {
        split: [node for tree in own for node in (tree if phrases and split == "train" else tree[:1])]
        for split, own in trees.items()
    }


def find_sst(
    data: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, list[list[Labelled]]], str]:
    """Reads the corpus from `data`, or from the sub-folder sst of `$DYNSKIP_DATA_DIR`.

    Returns:
        The trees, and a phrase for where they were found.

    Raises:
        UserError: there is no such folder, or it is not as it should be.
    """
    folder = named_folder(NAME, environ) if data is None else Path(data).expanduser()
    if folder is None:
        raise UserError(
            f"the Stanford Sentiment Treebank was not found: put train.txt, dev.txt and test.txt of "
            f"{UPSTREAM_URL} into a folder and name it with --data DIR, or into ${DATA_VARIABLE}/{NAME}"
        )
    return read_sst(folder), f"the folder {folder}"
