"""Find and read users' files: text line by line, and members of archives.

Text files are UTF-8, plain or gzip; byte-order marks are removed, and lines end with a line feed, a
carriage return, or both. Named pipes and devices are refused, because reading them may never end.
"""

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import bad_file, shown

PathLike = str | os.PathLike[str]

DATA_VARIABLE = "DYNSKIP_DATA_DIR"
SPLITS = ("train", "dev", "test")
# Words for the splits in names of files; the first one is that of published corpora.
SPLIT_WORDS: Mapping[str, Sequence[str]] = {
    "train": ("train", "training"),
    "dev": ("valid", "validation", "val", "dev", "development", "testa"),
    "test": ("test", "testb"),
}
# What damaged archives raise in `gzip` and `tarfile`.
_DAMAGED = (OSError, tarfile.TarError, zlib.error, EOFError)


def expanded(path: PathLike) -> Path:
    """Return a path whose `~` or `~user` is replaced, for where paths are typed."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        problem = "begins with the home folder of an unknown user: write the whole path"
        raise bad_file(path, problem) from None


def named_folder(name: str) -> Path | None:
    """Return the sub-folder `name` of `$DYNSKIP_DATA_DIR`, or None if there is no such folder."""
    root = os.environ.get(DATA_VARIABLE)
    if not root or name in ("", ".", "..") or Path(name).name != name:
        return None
    folder = expanded(root) / name
    return folder if folder.is_dir() else None


def data_folder(data: PathLike | None, name: str, title: str, files: Sequence[str]) -> Path:
    """Return the folder `data` or, if that is None, the folder `name` in `$DYNSKIP_DATA_DIR`."""
    folder = named_folder(name) if data is None else Path(data)
    if folder is None:
        remedy = f"put {', '.join(files)} into a folder and name it with --data DIR, or into"
        raise UserError(f"{title} was not found: {remedy} ${DATA_VARIABLE}/{name}")
    if not folder.is_dir():
        raise bad_file(folder, f"is no folder: name the one that holds {', '.join(files)}")
    return folder


def corpus_files(
    data: PathLike | None, name: str, title: str, files: Mapping[str, str]
) -> tuple[Path, dict[str, Path]]:
    """Return the `data_folder` of a published corpus, and the file of each split in it."""
    folder = data_folder(data, name, title, [*files.values()])
    return folder, {split: named_file(folder, file) for split, file in files.items()}


def named_file(folder: Path, name: str) -> Path:
    """Return the file in `folder` that has a name, perhaps with .gz."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise bad_file(folder, f"has no file {name} (or .gz): put it there, or use --data DIR")


def find_splits(
    folder: PathLike, endings: Sequence[str], *, needed: Sequence[str] = SPLITS
) -> dict[str, Path]:
    """Return each split's file in `folder`: `train.txt`, `wiki.valid.tokens`, `eng.testa`, ….

    A name is one of `SPLIT_WORDS`, perhaps after other text and a dot, a hyphen or an underscore,
    with one of the endings, in any case, perhaps with .gz. Splits that are not `needed` may be
    missing.
    """
    try:
        entries = sorted(path for path in Path(folder).iterdir() if path.is_file())
    except OSError as error:
        problem = f"is no folder that can be read ({error.strerror}): check its name"
        raise bad_file(folder, problem) from None
    found = {}
    ends = "|".join(re.escape(f".{ending}".rstrip(".")) for ending in endings)
    for split, words in SPLIT_WORDS.items():
        name = re.compile(rf"([^.].*[._-])?({'|'.join(words)})({ends})(\.gz)?", re.IGNORECASE)
        chosen = [path for path in entries if name.fullmatch(path.name)]
        if len(chosen) > 1:
            listed = ", ".join(shown(path.name) for path in chosen[:3])
            problem = f"has more than one file for the {split} split ({listed})"
            raise bad_file(folder, f"{problem}: keep one")
        if not chosen and split in needed:
            wanted = f"{words[0]}.{endings[0]} (or {', '.join(words[1:])}; perhaps with .gz)"
            problem = f"has no file for the {split} split"
            raise bad_file(folder, f"{problem}: put one there named {wanted}")
        if chosen:
            found[split] = chosen[0]
    return found


def read_file(path: PathLike, most: int) -> bytes:
    """Return the content of a regular file, which may have `most` bytes."""
    _check_is_file(path)
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        problem = f"cannot be read ({error.strerror}): check its permissions"
        raise bad_file(path, problem) from error
    if len(content) > most:
        raise bad_file(path, f"has more than {most:,} bytes: name a smaller file")
    return content


def iter_lines(path: PathLike, *, keeps_ends: bool = False) -> Iterator[str]:
    r"""Yield the lines of a text file, without ends or with `\n`."""
    _check_is_file(path)
    opened = gzip.open if os.fspath(path).lower().endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            yield from stream_lines(file, os.fspath(path), keeps_ends=keeps_ends)
    except _DAMAGED as error:
        problem = f"cannot be read, or is not what its name says ({error}): fetch it again"
        raise bad_file(path, f"{problem}, or unpack it") from error


def stream_lines(
    stream: Any, where: str = "standard input", *, keeps_ends: bool = False
) -> Iterator[str]:
    """Yield the lines of an open binary stream as soon as each is complete, and close it."""
    try:
        with io.TextIOWrapper(stream, encoding="utf-8-sig") as text:
            for line in text:
                yield line if keeps_ends else line.removesuffix("\n")
    except UnicodeDecodeError:
        problem = "is no UTF-8 text: convert it, for example with iconv"
        raise bad_file(where, problem) from None


def _check_is_file(path: PathLike) -> None:
    """Refuse a folder, a named pipe and a device, and what does not exist."""
    if not os.path.isfile(path):
        raise bad_file(path, "is no file: check its name and permissions")


def tar_files(
    path: PathLike, names: re.Pattern[str], source: str
) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield the bytes of a tar archive's files whose names match, with the match."""
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                found = names.fullmatch(member.name)
                if found and member.isfile():
                    yield found, tar.extractfile(member).read()
    except _DAMAGED as error:
        problem = f"the archive from {source} is damaged ({shown(error, 80)})"
        raise UserError(f"{problem}: try again later") from error
