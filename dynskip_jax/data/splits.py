"""Find the files of train, valid and test in a folder by their usual names."""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from dynskip_jax.data.messages import bad_file, shown

SPLITS = ("train", "valid", "test")
SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev", "development", "testa"),
    "test": ("test", "testb"),
}
# Endings of file names; the empty ending allows names such as `eng.testa`.
TEXT_ENDINGS = ("txt", "tokens")
COLUMN_ENDINGS = ("txt", "conll", "tsv", "iob", "iob2", "bio", "bio2", "bioes", "stagged", "")
LABELLED_ENDINGS = ("tsv", "csv", "jsonl", "ndjson", "json")
ALL_ENDINGS = tuple(
    dict.fromkeys((*TEXT_ENDINGS, *COLUMN_ENDINGS[:-1], "conllu", "pos", "tagged", *LABELLED_ENDINGS, ""))
)


def find_splits(
    folder: str | os.PathLike[str],
    endings: Sequence[str] = ALL_ENDINGS,
    *,
    prefix: str | None = None,
    needed: Collection[str] = SPLITS,
) -> dict[str, Path]:
    """Return the file of each split in `folder`.

    A file name consists of one of the split's words (`SPLIT_WORDS`) and one of the endings. Other text may
    precede the word if it ends with a dot, a hyphen or an underscore. Examples are `train.txt`,
    `wiki.valid.tokens`, `en_ewt-ud-dev.conllu` and `eng.testa`. Files may be compressed (`.gz`). Upper and
    lower case are equivalent.

    Args:
        folder: Folder to search; its sub-folders are not searched.
        endings: Accepted endings of file names, without the dot. Messages use the first one as the example.
        prefix: Exact text before the split's word, such as `ptb.`; None accepts any.
        needed: Splits that must exist; other splits are returned if they are found.

    Raises:
        UserError: If `folder` is not a readable folder, a needed split is missing, or a split has more than
            one file.
    """
    folder = Path(folder)
    example = f".{endings[0]}"
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except (OSError, ValueError) as error:
        files = ", ".join(f"{split}{example}" for split in SPLITS if split in needed)
        reason = getattr(error, "strerror", None) or error
        problem = f"is not a readable folder ({reason}): name a folder that holds the files {files}"
        raise bad_file(folder, problem) from None
    found = {}
    for split in SPLITS:
        chosen = _matching(names, SPLIT_WORDS[split], endings, prefix)
        if len(chosen) > 1:
            listed = ", ".join(shown(name) for name in chosen[:3])
            raise bad_file(folder, f"has more than one file for the {split} split ({listed}): keep one")
        if chosen:
            found[split] = folder / chosen[0]
        elif split in needed:
            raise bad_file(folder, _missing(split, endings, prefix))
    return found


def _matching(
    names: Sequence[str], words: Sequence[str], endings: Sequence[str], prefix: str | None
) -> list[str]:
    start = r"(.+[._-])?" if prefix is None else re.escape(prefix)
    ends = "|".join(re.escape(f".{ending}" if ending else "") for ending in endings)
    pattern = re.compile(rf"{start}({'|'.join(words)})({ends})(\.gz)?", re.IGNORECASE | re.DOTALL)
    return [name for name in names if pattern.fullmatch(name)]


def _missing(split: str, endings: Sequence[str], prefix: str | None) -> str:
    name = f"{prefix or ''}{split}.{endings[0]}"
    problem = f"has no file for the {split} split: put one there named {name}"
    if prefix is not None:
        return problem
    ends = ", ".join(f".{ending}" for ending in endings[1:4] if ending)
    others = " or ".join(SPLIT_WORDS[split][1:])
    return f"{problem} or ANYTHING-{name} ({ends} and .gz will do, and {others} for {split})"
