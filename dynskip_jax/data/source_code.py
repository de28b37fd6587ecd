"""Read source code: the tokens of a file in any programming language, and a folder of files as a corpus."""

import collections
import hashlib
import io
import itertools
import keyword
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from dynskip_jax.data.files import SPLITS, PathLike
from dynskip_jax.data.language import LanguageCorpus, corpus_name
from dynskip_jax.data.messages import bad_file, shares, shown
from dynskip_jax.data.vocabularies import (
    DEDENT,
    FILE,
    INDENT,
    NEWLINE,
    NUMBER,
    OTHER,
    STRING,
    code_vocabulary,
)
from dynskip_jax.errors import needs

_PYTHON = (".py", ".pyi")
_ENDINGS = (
    *(*_PYTHON, ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".dart", ".ex", ".go", ".hs", ".java", ".jl"),
    *(".js", ".jsx", ".kt", ".lua", ".ml", ".php", ".pl", ".r", ".rb", ".rs", ".scala", ".sh", ".swift"),
    *(".ts", ".tsx", ".zig"),
)
# Folders that are not read, anywhere and in the standard library: what is generated, installed or tests.
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages", "build", "dist", "target"}
_SKIPPED_OF_PYTHON = {"test", "tests", "idle_test", "encodings", "pydoc_data"}
_LARGEST_FILE = 1_000_000  # bytes; larger ones are mostly tables of data
_HELD_OUT = 0.08  # fraction of the tokens in dev, and in test, at least
_LARGE = 0.2  # fraction of all bytes in a package from which it is split into what it contains
_BYTES_OF_TOKEN = 4  # at least, with comments
_LONGEST_STRING, _LONGEST_NUMBER = 14, 2  # characters of those that are kept
_MARK = re.compile(r"<(?:file|newline|indent|dedent|string|number|other|name-\d+)>")
_MARKS = {"NEWLINE": NEWLINE, "INDENT": INDENT, "DEDENT": DEDENT}
_UNREADABLE = (OSError, ValueError, SyntaxError, tokenize.TokenError)  # ValueError: the text is not UTF-8


class CodeToken(NamedTuple):
    """A token of a file; `start` and `stop` are its first character and the one after its last."""

    text: str  # as vocabularies list it
    start: int
    stop: int
    is_name: bool = False  # an identifier that is no keyword


Code = Sequence[CodeToken]  # of one file


def code_text(name: str, content: bytes) -> str:
    """Return the text of a file, with line feeds at line ends."""
    encoding = "utf-8-sig"
    if name.endswith(_PYTHON):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    text = content.decode(encoding)
    if "\0" in text:
        raise ValueError("binary")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def code_tokens(name: str, text: str) -> Iterator[CodeToken]:
    """Yield the tokens of a file without comments; the ending of its name tells the language.

    Python has tokens for line ends and indentation. A `SyntaxError` or `TokenError` may follow the tokens
    before the fault.
    """
    yield from _python_tokens(text) if name.endswith(_PYTHON) else _other_tokens(name, text)


def _python_tokens(text: str) -> Iterator[CodeToken]:
    lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def offset(line: int, column: int) -> int:
        return lines[line - 1] + column if line <= len(lines) else len(text)

    for number, string, start, stop, _ in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, place = tokenize.tok_name[number], (offset(*start), offset(*stop))
        if kind in _MARKS:
            yield CodeToken(_MARKS[kind], *place)
        elif "STRING" in kind:  # parts of an f-string, too
            yield CodeToken(_short_string(string), *place)
        elif kind == "NUMBER":
            yield CodeToken(_short_number(string), *place)
        elif kind not in ("COMMENT", "NL", "ENCODING", "ENDMARKER") and not string.isspace():
            is_name = string.isidentifier() and not keyword.iskeyword(string)
            yield CodeToken(string, *place, is_name)


def _other_tokens(name: str, text: str) -> Iterator[CodeToken]:
    with needs("experiments"):
        from pygments.lexers import get_lexer_for_filename
        from pygments.token import Comment, Name, Number, String
    found = get_lexer_for_filename(name, text).get_tokens_unprocessed(text)
    is_string = lambda part: part[1] in String or part[1] in Comment.PreprocFile  # noqa: E731
    for of_string, parts in itertools.groupby(found, is_string):
        parts = list(parts)
        if of_string:  # quotes and escapes are parts of their own
            string = "".join(value for _, _, value in parts)
            yield CodeToken(_short_string(string), parts[0][0], parts[0][0] + len(string))
            continue
        for offset, kind, value in parts:
            if kind in Comment and kind not in Comment.Preproc:
                continue
            for word in re.finditer(r"\S+", value):
                text = _short_number(word[0]) if kind in Number else _MARK.sub(OTHER, word[0])
                yield CodeToken(text, offset + word.start(), offset + word.end(), kind in Name)


def _short_string(string: str) -> str:
    is_kept = len(string) <= _LONGEST_STRING and not re.search(r"\s", string) and not _MARK.search(string)
    return string if is_kept else STRING


def _short_number(string: str) -> str:
    return string if len(string) <= _LONGEST_NUMBER else NUMBER


# --- Folders ---


def read_code(folder: PathLike | None, max_tokens: int) -> tuple[LanguageCorpus, list[str]]:
    """Read a folder of source code, by default Python's standard library, and describe it in lines.

    A package is a folder or a file at the top of the folder; a large one is split into what it contains.
    Packages are read in the order of a hash of their names, until there are `max_tokens`. No two splits share
    a package. Of files with the same content, one is read. `<file>` ends each file.
    """
    root = Path(folder or sysconfig.get_paths()["stdlib"]).expanduser()
    if not root.is_dir():
        raise bad_file(root, "is no folder: name the folder of your source code with --data DIR")
    files = _files(root, _SKIPPED if folder else _SKIPPED | _SKIPPED_OF_PYTHON)
    packages: dict[str, list[Code]] = {}
    seen, unreadable, copies, count = set(), [], 0, 0
    for package, path in _in_packages(files, _BYTES_OF_TOKEN * max_tokens):
        if count >= max_tokens:
            break
        try:
            content = (root / path).read_bytes()
            tokens = list(code_tokens(path.name, code_text(path.name, content)))
        except _UNREADABLE:
            unreadable.append(path)
            continue
        digest = hashlib.sha256(content).digest()
        if digest in seen:
            copies += bool(tokens)
        elif tokens:
            packages.setdefault(package, []).append(tokens)
            count += len(tokens)
        seen.add(digest)
    if len(packages) < len(SPLITS):
        found = f"has {sum(map(len, packages.values()))} files of source code that can be read"
        raise bad_file(root, f"{found}: train, dev and test need one each")
    splits = _split(packages, count)
    vocabulary = code_vocabulary(*(_counts(splits["train"], of_names) for of_names in (True, False)))
    ids, numbered = {}, {}
    for split, of_split in splits.items():
        texts = [[*vocabulary.number(tokens), FILE] for tokens in of_split]
        ids[split] = vocabulary.encode([text for of_file in texts for text in of_file])
        is_name = (ids[split] > 0) & (ids[split] < vocabulary.first_other)
        numbered[split] = (
            float(np.mean(ids[split][is_name] < vocabulary.first_name)) if is_name.any() else 0.0
        )
    name = corpus_name(root) if folder else "python{}.{}".format(*sys.version_info)
    source = f"the source code in {root}"
    sizes = ", ".join(f"{len(of_split):,} files of {split}" for split, of_split in splits.items())
    lines = [f"{sizes}; no two splits share a package"]
    lines.append(f"names seen fewer than 3 times in train are numbered in each file: {shares(numbered)}")
    if copies:
        lines.append(f"{copies:,} copies of other files are left out")
    if unreadable:
        names = ", ".join(shown(path) for path in unreadable[:5]) + ", …" * (len(unreadable) > 5)
        lines.append(f"{len(unreadable):,} files cannot be read as their language, and are left out: {names}")
    return LanguageCorpus(name, **ids, vocabulary=vocabulary, source=source), lines


def _files(root: Path, skipped: Collection[str]) -> dict[PurePath, int]:
    """Return the size in bytes of each file of source code, by its path below `root`."""
    found = {}
    for here, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not (name[0] == "." or name in skipped)]
        if (Path(here) / "pyvenv.cfg").exists() and Path(here) != root:
            folders.clear()
            continue
        for path in (Path(here) / name for name in files if name.lower().endswith(_ENDINGS)):
            if path.is_file() and path.stat().st_size <= _LARGEST_FILE:
                found[path.relative_to(root)] = path.stat().st_size
    return found


def _in_packages(files: Mapping[PurePath, int], most: int) -> list[tuple[str, PurePath]]:
    """Return each file with the name of its package: packages by a hash of their names, files by name."""
    limit = _LARGE * min(sum(files.values()), most)

    def apart(group: Sequence[PurePath], depth: int, limit: float) -> Iterator[tuple[str, PurePath]]:
        within: dict[str, list[PurePath]] = {}
        for path in group:
            within.setdefault("/".join(path.parts[:depth]), []).append(path)
        for name, paths in within.items():
            if len(paths) > 1 and sum(files[path] for path in paths) > limit:
                yield from apart(paths, depth + 1, limit)
            else:
                yield from ((name, path) for path in paths)

    found = list(apart(list(files), 1, limit))
    if len({name for name, _ in found}) < len(SPLITS):
        found = list(apart(list(files), 1, 0))  # each file is a package
    return sorted(found, key=lambda pair: (hashlib.sha256(pair[0].encode()).digest(), pair[1]))


def _split(packages: Mapping[str, list[Code]], count: int) -> dict[str, list[Code]]:
    """Divide packages of `count` tokens in all into splits; train has the largest one."""
    sizes = {name: sum(map(len, files)) for name, files in packages.items()}
    names = [name for name in packages if name != max(sizes, key=sizes.get)]
    splits: dict[str, list[Code]] = {}
    for split, left in (("test", 1), ("dev", 0)):  # how many packages the other held-out split needs
        found = 0
        while len(names) > left and found < _HELD_OUT * count:
            name = names.pop(0)
            found += sizes[name]
            splits.setdefault(split, []).extend(packages[name])
    train = [files for name, files in packages.items() if name in {*names, max(sizes, key=sizes.get)}]
    return {"train": list(itertools.chain(*train)), "dev": splits["dev"], "test": splits["test"]}


def _counts(files: Sequence[Code], are_names: bool) -> collections.Counter[str]:
    """Return how often each text occurs as a name, or as another token."""
    return collections.Counter(token.text for code in files for token in code if token.is_name == are_names)
