"""Find and read users' files: text line by line, and members of archives.

Text files are UTF-8, plain or gzip; byte-order marks are removed, and lines end with a line feed, a
carriage return, or both. Named pipes and devices are refused, because reading them may never end,
and so are lines of more than `MAX_LINE` characters, for which memory may lack.
"""

import contextlib
import gzip
import io
import os
import re
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import bad_file, bad_line, shown

PathLike = str | os.PathLike[str]

DATA_VARIABLE = "DYNSKIP_DATA_DIR"
MAX_LINE = 100_000_000  # characters; text8 is one line of this length
SPLITS = ("train", "dev", "test")
# Words for the splits in names of files; the first one is that of published corpora.
SPLIT_WORDS: Mapping[str, Sequence[str]] = {
    "train": ("train", "training"),
    "dev": ("valid", "validation", "val", "dev", "development", "testa"),
    "test": ("test", "testb"),
}
# Files that systems put into folders, besides hidden ones.
_OF_SYSTEMS = ("thumbs.db", "desktop.ini")
# Bytes that are not UTF-8, as `surrogateescape` keeps them.
_UNDECODED = re.compile("[\udc80-\udcff]")
# What damaged or unusual archives raise in `gzip`, `zipfile`, `tarfile` and their decompressors.
_DAMAGED = (
    OSError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    KeyError,
    RuntimeError,
)


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


def folder_entries(folder: PathLike) -> list[Path]:
    """Return the files and folders in a folder, sorted by name, without hidden ones."""
    try:
        entries = sorted(Path(folder).iterdir())
    except NotADirectoryError:
        raise bad_file(folder, "is no folder: name the folder that it is in") from None
    except OSError as error:
        problem = f"cannot be read ({error.strerror}): check its name and permissions"
        raise bad_file(folder, problem) from None
    return [own for own in entries if not _is_hidden(own.name)]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


def only_file(folder: Path, pattern: str) -> Path:
    """Return the only file in `folder` whose name matches the pattern, perhaps with .gz."""
    found = sorted((*folder.glob(pattern), *folder.glob(f"{pattern}.gz")))
    if len(found) != 1:
        names = ", ".join(shown(path.name) for path in found[:3]) or "none"
        problem = f"needs one file named {pattern} (or .gz), and has {names}"
        raise bad_file(folder, f"{problem}: use --data DIR")
    return found[0]


def find_splits(
    folder: PathLike, endings: Sequence[str], *, needed: Sequence[str] = SPLITS
) -> dict[str, Path]:
    """Return each split's file in `folder`: `train.txt`, `wiki.valid.tokens`, `eng.testa`, ….

    A name is one of `SPLIT_WORDS`, perhaps after other text and a dot, a hyphen or an underscore,
    with one of the endings, in any case, perhaps with .gz. Splits that are not `needed` may be
    missing.
    """
    entries = folder_entries(folder)
    found = {}
    ends = "|".join(re.escape(f".{ending}" if ending else "") for ending in endings)
    for split, words in SPLIT_WORDS.items():
        name = re.compile(rf"(.+[._-])?({'|'.join(words)})({ends})(\.gz)?", re.IGNORECASE)
        chosen = [path for path in entries if path.is_file() and name.fullmatch(path.name)]
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


def open_file(path: PathLike) -> BinaryIO:
    """Open a regular file to read its bytes; the error for anything else names the path."""
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: the name has a null character
        reason = getattr(error, "strerror", None) or error
        problem = f"cannot be read ({reason}): check its name and permissions"
        raise bad_file(path, problem) from error
    # The open file is checked, and not its name, which may change in between.
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise bad_file(path, "is a named pipe or a device, not a file: copy its text into a file")
    return file


def read_file(path: PathLike, most: int) -> bytes:
    """Return the content of a regular file, which may have `most` bytes."""
    with open_file(path) as file:
        content = file.read(most + 1)
    return _checked(path, content, most)


def read_standard_input(most: int) -> bytes:
    """Return the bytes of standard input up to its end, which may be `most`."""
    return _checked("standard input", sys.stdin.buffer.read(most + 1), most)


def iter_lines(
    path: PathLike, member: str | None = None, *, keeps_ends: bool = False
) -> Iterator[str]:
    r"""Yield the lines of a text file or of a zip archive's member, without ends or with `\n`."""
    with open_file(path) as file:
        try:
            with _unpacked(file, path, member) as text:
                yield from stream_lines(text, place(path, member), keeps_ends=keeps_ends)
        except _DAMAGED as error:
            problem = f"is damaged, or not what its name says ({error}): fetch it again"
            raise bad_file(path, f"{problem}, or unpack it") from error


def stream_lines(
    stream: Any, where: str = "standard input", *, keeps_ends: bool = False
) -> Iterator[str]:
    """Yield the lines of an open binary stream as soon as each is complete."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape")
    try:
        # `readline` with a limit: a file without line ends would fill the memory.
        for number, line in enumerate(iter(lambda: text.readline(MAX_LINE + 1), ""), 1):
            if len(line) > MAX_LINE:
                raise bad_line(
                    where, number, f"more than {MAX_LINE:,} characters: break it into lines"
                )
            if not line.isascii() and _UNDECODED.search(line):
                raise bad_line(
                    where, number, "no UTF-8 text: convert the file, for example with iconv"
                )
            line = line.lstrip("\ufeff")  # also of files put together
            yield line if keeps_ends else line.removesuffix("\n")
    finally:
        with contextlib.suppress(ValueError):  # the stream is closed already
            text.detach()


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


def place(path: PathLike, member: str | None = None) -> str:
    """Return the name of a file, or of a member of an archive, for messages."""
    return os.fspath(path) if member is None else f"{os.fspath(path)} ({member})"


def _checked(where: PathLike, content: bytes, most: int) -> bytes:
    """Return what was read, unless there is more of it."""
    if len(content) > most:
        raise bad_file(where, f"has more than {most:,} bytes: name a smaller file")
    return content


def _unpacked(
    file: BinaryIO, path: PathLike, member: str | None
) -> contextlib.AbstractContextManager[Any]:
    """Return the stream of a file's text, which is unpacked from a .gz file or a zip archive."""
    if member is not None:
        return zipfile.ZipFile(file).open(member)
    if os.fspath(path).lower().endswith(".gz"):
        return gzip.open(file)
    return contextlib.nullcontext(file)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a named pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
