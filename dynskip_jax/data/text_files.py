"""Read users' files: text line by line, members of archives, JSON.

Unreadable or damaged files raise a `UserError`. Text files are UTF-8, plain or gzip. A byte-order mark is
removed. Lines end with a line feed, a carriage return, or both. Named pipes and devices are refused, because
reading them may never end.
"""

import codecs
import contextlib
import gzip
import io
import json
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from dynskip_jax.data.messages import bad_file, printable, shown
from dynskip_jax.errors import UserError

PathLike = str | os.PathLike[str]

_CHUNK = 1 << 20
_DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)
# Exceptions that `zipfile` and its decompressors raise for damaged archives.
_DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    struct.error,
    ArithmeticError,
    LookupError,
    MemoryError,
)


@contextlib.contextmanager
def open_binary(path: PathLike) -> Iterator[io.BufferedIOBase]:
    """Open a regular file to read its bytes; a file whose name ends with `.gz` is decompressed.

    Raises:
        UserError: If the file does not exist, cannot be read, is not a regular file, or is a damaged gzip
            file.
    """
    try:
        with _open_regular(path) as file:
            if os.fspath(path).lower().endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield unpacked
            else:
                yield file
    except _DAMAGED_GZIP as error:
        raise bad_file(path, f"is a truncated or damaged gzip file ({error}): fetch it again") from error
    except FileNotFoundError:
        raise bad_file(path, "is not there: name a file that is") from None
    except IsADirectoryError:
        raise bad_file(path, "cannot be read: it is a folder, name a file") from None
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error}): check its name and permissions"
        raise bad_file(path, problem) from error


def iter_lines(path: PathLike, member: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file without their line ends; only a part of the file is in memory.

    Args:
        path: Text file, plain or .gz; a zip archive if `member` is given.
        member: File within the archive.

    Raises:
        UserError: If the file cannot be read, is damaged, or is not UTF-8.
    """
    if member is None:
        with open_binary(path) as file:
            yield from _lines(_chunks(file), place(path, member))
    else:
        with open_archive(path) as archive, archive.open(member) as file:
            yield from _lines(_chunks(file), place(path, member))


def stream_lines(stream: io.BufferedIOBase, where: str = "standard input") -> Iterator[str]:
    """Yield the lines of an open stream, such as standard input, as soon as each is complete.

    Args:
        stream: Binary stream of UTF-8 text.
        where: Name of the stream in error messages.

    Raises:
        UserError: If the stream cannot be read, or is not UTF-8.
    """
    read = getattr(stream, "read1", stream.read)  # read1 returns available bytes without waiting for more
    try:
        yield from _lines(iter(lambda: read(_CHUNK), b""), where)
    except OSError as error:
        raise bad_file(where, f"cannot be read ({error.strerror or error})") from error


def read_text(path: PathLike) -> str:
    """Return the text of a UTF-8 file with line feeds as line ends.

    Raises:
        UserError: See `iter_lines`.
    """
    return "\n".join(iter_lines(path))


@contextlib.contextmanager
def open_archive(path: PathLike) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; errors while its members are read also become a `UserError`.

    Raises:
        UserError: If the archive is missing, damaged or encrypted, lacks a member, or needs an unknown
            compression method.
    """
    with _open_user_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except UserError:
            raise
        except KeyError as error:
            raise bad_file(path, f"is another archive ({error.args[0]}): name the right one") from error
        except NotImplementedError as error:
            problem = f"is packed in a way that Python cannot unpack ({error}): unpack it, name the folder"
            raise bad_file(path, problem) from error
        except RuntimeError as error:
            problem = f"is encrypted ({error}): unpack it with its password, and name the folder"
            raise bad_file(path, problem) from error
        except _DAMAGED_ZIP as error:
            problem = f"is no zip archive, or a damaged one ({error}): fetch it again"
            raise bad_file(path, problem) from error
        except Exception as error:
            if type(error).__module__ not in ("lzma", "_lzma"):  # Python may be built without lzma
                raise
            problem = f"is no zip archive, or a damaged one ({error}): fetch it again"
            raise bad_file(path, problem) from error


@contextlib.contextmanager
def open_tar(path: PathLike, source: str) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, compressed or not; errors while its members are read also become a `UserError`.

    Args:
        path: Tar archive.
        source: Address from which the archive was downloaded, for error messages.

    Raises:
        UserError: If the archive is missing or damaged.
    """
    with _open_user_file(path) as file:
        try:
            with tarfile.open(fileobj=file) as tar:
                yield tar
        except UserError:
            raise
        except (tarfile.TarError, *_DAMAGED_ZIP) as error:
            problem = f"is damaged ({shown(error)}): try again later"
            raise UserError(f"the archive from {source} {problem}") from error


def place(path: PathLike, member: str | None = None) -> str:
    """Return the name of a file, or of a member of an archive, for messages."""
    return os.fspath(path) if member is None else f"{os.fspath(path)} ({member})"


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If the text is not JSON, is nested too deeply, or contains half of a surrogate pair; the
            message is short.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\u" in text:
        check_characters(value)
    return value


def check_characters(value: Any) -> None:
    r"""Raise a `ValueError` if a string in `value` contains half of a surrogate pair, such as `\ud800`."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{printable(value[error.start])} is half of a character") from None
    elif isinstance(value, dict):
        for name, part in value.items():
            check_characters(name)
            check_characters(part)
    elif isinstance(value, list):
        for part in value:
            check_characters(part)


@contextlib.contextmanager
def _open_user_file(path: PathLike) -> Iterator[io.BufferedIOBase]:
    """Open a regular file without decompression; only errors while opening it become a `UserError`."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(_open_regular(path))
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error}): check its name"
            raise bad_file(path, problem) from error
        yield file


def _open_regular(path: PathLike) -> io.BufferedIOBase:
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except ValueError as error:  # a NUL character in the name
        raise bad_file(path, f"cannot be read ({error}): check its name") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise bad_file(path, "is a named pipe or a device, not a file: copy its text into a file")
    return file


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a named pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _chunks(file: io.BufferedIOBase) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


class _Decoder:
    """Incremental UTF-8 decoder that removes a byte-order mark and converts line ends to line feeds.

    Attributes:
        where: Name of the file, for error messages.
        offset: Number of bytes decoded so far.
        lines: Number of line ends decoded so far.
    """

    def __init__(self, where: str):
        self.where, self.offset, self.lines = where, 0, 0
        self._codec = codecs.getincrementaldecoder("utf-8")()
        self._newlines = io.IncrementalNewlineDecoder(None, translate=True)

    def decode(self, data: bytes, *, is_last: bool = False) -> str:
        """Return the text of the next bytes.

        Incomplete characters, and a final carriage return that a line feed may follow, are held back for the
        next call.

        Args:
            data: Next bytes of the file.
            is_last: Whether this is the last call, which holds nothing back.

        Raises:
            UserError: If the bytes are not UTF-8.
        """
        start = self.offset - len(self._codec.getstate()[0])
        try:
            text = self._codec.decode(data, is_last)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode("utf-8")
            line = self.lines + self._newlines.decode(before, True).count("\n") + 1
            problem = f"is not UTF-8 text (line {line}, byte offset {start + error.start}): convert it"
            raise bad_file(self.where, f"{problem}, e.g. with iconv -t UTF-8") from None
        if not start:
            text = text.removeprefix("\ufeff")
        text = self._newlines.decode(text, is_last)
        self.offset += len(data)
        self.lines += text.count("\n")
        return text


def _lines(chunks: Iterable[bytes], where: str) -> Iterator[str]:
    """Decode chunks of bytes and yield their lines; a line may extend over several chunks."""
    decoder = _Decoder(where)
    unfinished: list[str] = []
    for chunk in chunks:
        first, *others = decoder.decode(chunk).split("\n")
        unfinished.append(first)
        if others:
            yield "".join(unfinished)
            yield from others[:-1]
            unfinished = [others[-1]]
    first, *others = ("".join(unfinished) + decoder.decode(b"", is_last=True)).split("\n")
    if first or others:
        yield first
