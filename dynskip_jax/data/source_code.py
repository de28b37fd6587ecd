"""Read source code: a file's tokens in any programming language, and a folder as a corpus."""

import hashlib
import io
import itertools
import keyword
import os
import re
import sys
import sysconfig
import tokenize
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from dynskip_jax.data import vocabularies
from dynskip_jax.data.files import SPLITS, PathLike, read_file
from dynskip_jax.data.language import LanguageCorpus, corpus_name
from dynskip_jax.data.vocabularies import FILE, CodeToken
from dynskip_jax.errors import needs
from dynskip_jax.terminal.messages import bad_file, shown

with needs("experiments"):
    from pygments.lexers import get_lexer_for_filename
    from pygments.token import Comment, Name, Number, String

_PYTHON = (".py", ".pyi")
# As Pygments lists them: its `.r` is REBOL, and its `.H` is always C++.
_OTHERS = (
    "c cc cpp cs dart ex go h hpp hs java jl js jsx kt lua ml php pl R rb rs scala sh swift ts tsx"
)
_ENDINGS = {
    ending.lower(): ending for ending in (*_PYTHON, *(f".{other}" for other in _OTHERS.split()))
}
# Folders that are not read, anywhere and in the standard library: what is generated, installed or
# tests.
_SKIPPED = {
    "__pycache__",
    "node_modules",
    "site-packages",
    "dist-packages",
    "build",
    "dist",
    "target",
}
_SKIPPED_OF_PYTHON = {"test", "tests", "idle_test", "encodings", "pydoc_data"}
LARGEST_FILE = 1_000_000  # bytes; larger ones are mostly tables of data
_LONGEST_LINE = 10_000  # characters; some lexers need the square of that
_HELD_OUT = 0.08  # fraction of the tokens in dev, and in test, at least
_LARGE = 0.2  # fraction of all bytes from which a package is split into what it contains
_BYTES_OF_TOKEN = 4  # at least, with comments
_MARKS = {kind.upper(): f"<{kind}>" for kind in ("newline", "indent", "dedent")}
_IS_MARK = re.compile(r"<(?:file|newline|indent|dedent|string|number|other|name-\d+)>")


def code_text(name: str, content: bytes) -> str:
    """Return the text of a file, with line feeds at line ends; raise if it is none."""
    encoding = "utf-8-sig"
    if _is_python(name):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    text = content.decode(encoding)
    text.encode()  # raises for halves of characters, which some of Python's encodings give
    if "\0" in text:
        raise ValueError("binary")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def code_tokens(name: str, text: str) -> Iterator[CodeToken]:
    """Yield the tokens of a file without comments; its name and its text tell the language.

    Python has tokens for line ends and indentation. A `SyntaxError` or `TokenError` may follow the
    tokens before the fault. In other languages, lexers may raise anything.
    """
    if _is_python(name):
        yield from _python_tokens(text)
    else:
        yield from _other_tokens(name, text)


def lexed(name: str, text: str) -> Iterator[tuple[int, Any, str]]:
    """Yield the parts of a file as Pygments finds them: first character, kind and text."""
    if not _is_python(name) and len(max(text.split("\n"), key=len)) > _LONGEST_LINE:
        raise ValueError(f"a line has more than {_LONGEST_LINE:,} characters")
    path = PurePath(name)
    known = path.with_suffix(_ENDINGS.get(path.suffix.lower(), path.suffix)).name
    plain = _with_plain_letters(text)
    for start, kind, part in get_lexer_for_filename(known, plain).get_tokens_unprocessed(plain):
        yield start, kind, text[start : start + len(part)]


def _is_python(name: str) -> bool:
    return name.lower().endswith(_PYTHON)


def _is_comment(name: str, kind: Any) -> bool:
    """Return whether a kind of part is a comment: no `#include` of C, no docstring of Python."""
    if kind in String.Doc:
        return not _is_python(name)
    return kind in Comment and kind not in Comment.Preproc and kind not in Comment.PreprocFile


def _with_plain_letters(text: str) -> str:
    """Return a text of the same length with `x` for what identifiers have beyond ASCII.

    Lexers cut identifiers at the marks of many scripts; Python's own does before 3.12.
    """
    return re.sub(r"[^\x00-\x7f]", lambda one: "x" if f"x{one[0]}".isidentifier() else one[0], text)


def _python_tokens(text: str) -> Iterator[CodeToken]:
    # `tokenize` counts lines and columns, and places are characters of the text.
    lines = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    readline = io.StringIO(_with_plain_letters(text)).readline
    for number, _, (first, left), (last, right), _ in tokenize.generate_tokens(readline):
        start = lines[first - 1] + left
        stop = lines[last - 1] + right
        string = text[start:stop]
        kind = tokenize.tok_name[number]
        if kind in ("COMMENT", "NL", "ENDMARKER") or (kind == "ERRORTOKEN" and string.isspace()):
            continue
        is_name = kind == "NAME" and not keyword.iskeyword(string)
        if is_name:
            string = unicodedata.normalize("NFKC", string)  # as the language compares names
        kept = _MARKS.get(kind) or _short(string, "STRING" in kind, kind == "NUMBER")
        yield CodeToken(kept, start, stop, is_name)


def _other_tokens(name: str, text: str) -> Iterator[CodeToken]:
    def is_of_string(part: tuple[int, Any, str]) -> bool:
        return part[1] in String and not _is_comment(name, part[1])

    # A string is one token, although lexers cut it at escapes.
    for is_string, parts in itertools.groupby(lexed(name, text), is_of_string):
        parts = list(parts)
        if is_string:  # quotes and escapes are parts of their own
            parts = [(parts[0][0], String, "".join(part for _, _, part in parts))]
        for offset, kind, part in parts:
            if _is_comment(name, kind):
                continue
            for word in re.finditer(r"(?s).+" if is_string else r"\S+", part):
                kept = _short(word[0], is_string, kind in Number)
                yield CodeToken(kept, offset + word.start(), offset + word.end(), kind in Name)


def _short(text: str, is_string: bool, is_number: bool) -> str:
    """Return a token, or what stands for a long string or number, or for a mark of ours."""
    if is_string and (len(text) > 14 or re.search(r"\s", text)):
        return vocabularies.STRING
    if is_number and len(text) > 2:
        return vocabularies.NUMBER
    return _IS_MARK.sub(vocabularies.OTHER, text)


# --- Folders ---


def read_code(folder: PathLike | None, max_tokens: int) -> tuple[LanguageCorpus, list[str]]:
    """Read a folder of source code, by default Python's standard library, and describe it in lines.

    Packages are read in the order of a hash of their names, until there are `max_tokens`. No two
    splits share a package. Of files with the same tokens, one is read. `<file>` ends each file.
    """
    root = Path(folder or sysconfig.get_paths()["stdlib"]).expanduser()
    skipped = _SKIPPED
    if not folder:
        skipped = _SKIPPED | _SKIPPED_OF_PYTHON
    sizes = _sizes(root, skipped)
    packages, count, unread = _read_packages(root, sizes, max_tokens)
    if len(packages) < len(SPLITS):
        num_files = sum(map(len, packages.values()))
        problem = f"has {num_files} different files of source code that can be read"
        raise bad_file(root, f"{problem}: train, dev and test need one each")
    splits = _split(packages, count)
    vocabulary = vocabularies.code_vocabulary(itertools.chain(*splits["train"]))
    ids = {
        split: vocabulary.encode(
            [text for file in files for text in (*vocabulary.number(file), FILE)]
        )
        for split, files in splits.items()
    }
    lines = [
        "files: " + ", ".join(f"{split} {len(files):,}" for split, files in splits.items()),
    ]
    if count >= max_tokens:
        lines.append(f"read until there were {count:,} tokens: --max-tokens reads more")
    if unread:
        names = [shown(path) for path in unread[:5]]
        lines.append(f"cannot be read, and left out: {len(unread):,} ({', '.join(names)})")
    name = "python{}.{}".format(*sys.version_info)
    if folder:
        name = corpus_name(root)
    corpus = LanguageCorpus(name, **ids, vocabulary=vocabulary, source=f"the source code in {root}")
    return corpus, lines


def _read_packages(
    root: Path, sizes: Mapping[PurePath, int], max_tokens: int
) -> tuple[dict[str, list[list[CodeToken]]], int, list[PurePath]]:
    """Return each package's files, the number of their tokens, and files that cannot be read."""
    packages: dict[str, list[list[CodeToken]]] = {}
    seen = set()
    unread = []
    count = 0
    for package, path in _in_packages(sizes, _BYTES_OF_TOKEN * max_tokens):
        try:
            text = code_text(path.name, read_file(root / path, LARGEST_FILE))
            tokens = list(code_tokens(path.name, text))
        except Exception:  # no decoder or lexer says what it may raise
            unread.append(path)
            continue
        # As they stand in the file: `<string>` would be the same for all long strings.
        parts = (text[token.start : token.stop].strip() or token.text for token in tokens)
        digest = hashlib.sha256("\n".join(parts).encode()).digest()
        if tokens and digest not in seen:
            packages.setdefault(package, []).append(tokens)
            count += len(tokens)
        seen.add(digest)  # copies in other packages would put the same text into two splits
        if count >= max_tokens:
            break
    return packages, count, unread


def _sizes(root: Path, skipped: Collection[str]) -> dict[PurePath, int]:
    """Return the size in bytes of each file of source code, by its path below `root`."""
    if not root.is_dir():
        raise bad_file(root, "is no folder: check its name and permissions")
    found = {}
    for here, folders, files in os.walk(root):
        # `os.walk` enters the folders that are left in this list.
        folders[:] = [name for name in folders if name[0] != "." and name not in skipped]
        if "pyvenv.cfg" in files:
            folders.clear()
        for path in (Path(here, name) for name in files):
            is_code = path.suffix.lower() in _ENDINGS and path.is_file()
            if is_code and path.stat().st_size <= LARGEST_FILE:
                found[path.relative_to(root)] = path.stat().st_size
    return found


def _in_packages(sizes: Mapping[PurePath, int], most: int) -> list[tuple[str, PurePath]]:
    """Return each file and its package: a folder or file at the top, or in a too large package."""

    def apart(
        paths: Collection[PurePath], depth: int, limit: float
    ) -> Iterator[tuple[str, PurePath]]:
        name_of = lambda path: "/".join(path.parts[:depth])  # noqa: E731
        for name, group in itertools.groupby(sorted(paths, key=name_of), name_of):
            group = list(group)
            if len(group) > 1 and sum(sizes[path] for path in group) > limit:
                yield from apart(group, depth + 1, limit)
            else:
                yield from ((name, path) for path in sorted(group))

    found = list(apart(sizes, 1, _LARGE * min(sum(sizes.values()), most)))
    if len(dict(found)) < len(SPLITS):
        found = list(apart(sizes, 1, 0))  # each file for itself
    # Not by name: packages of similar names are alike.
    return sorted(found, key=lambda pair: hashlib.sha256(os.fsencode(pair[0])).digest())


def _split(packages: Mapping[str, list], count: int) -> dict[str, list]:
    """Divide packages of `count` tokens: test and dev have the first, train has the largest."""
    sizes = {name: sum(map(len, files)) for name, files in packages.items()}
    largest = max(sizes, key=sizes.get)
    names = [name for name in packages if name != largest]
    splits: dict[str, list] = {"train": [*packages[largest]], "dev": [], "test": []}
    for split, left in (("test", 1), ("dev", 0)):  # dev needs a package, too
        while len(names) > left and sum(map(len, splits[split])) < _HELD_OUT * count:
            splits[split] += packages[names.pop(0)]
    for name in names:
        splits["train"] += packages[name]
    return splits
