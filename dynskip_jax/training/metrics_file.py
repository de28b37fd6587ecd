"""Write and read `metrics.jsonl`, the records of a run: one JSON object to a line."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.training.files import (
    append_line,
    is_of,
    num_values,
    parsed,
    read_lines,
    write_atomically,
)
from dynskip_jax.training.stored import from_json, may_have_not_finite, to_json

logger = logging.getLogger(__name__)

_MOST_BYTES = 2**28
_MOST_LINES = 500_000
# Largest numbers of values: in a line, and in all lines.
_MOST_VALUES = 2_000_000
_MOST_LOGGED = 25_000_000
_RECORD = {"step": int, "epoch": (int, float), "split": str}
_EMPTY_RECORD = {"step": 0, "epoch": 0, "split": ""}


class MetricsFile:
    """The records of a run, and the digest of those that this process has found and written.

    The checkpoint and the result contain the digest, so that other records are noticed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._logged = _DigestOfLines()

    @property
    def digest(self) -> str:
        """The SHA-256 of the records that this process has found and written."""
        return self._logged.hexdigest()

    def digest_of_file(self) -> str:
        """Return the SHA-256 of the records that the file has now."""
        return _DigestOfLines(self._lines()).hexdigest()

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record, whose arrays become lists, and wait until it is on disk."""
        line = json.dumps(to_json(record))
        append_line(self.path, line)
        self._logged.add(line)

    def records(self) -> list[dict]:
        """Return the records, without an incomplete last line of a run that was killed."""
        return [record for _, record in self._read()]

    def rewind(self, step: int, digest: str | None) -> None:
        """Remove the records after a step, and an incomplete last line.

        Records that differ from those of the checkpoint, by its `digest`, are refused. If the whole
        file is missing, a warning is logged, because the records are not needed to go on.
        """
        exists = self.path.exists()
        lines = [line for line, record in self._read() if record.get("step", 0) <= step]
        logged = _DigestOfLines(lines)
        if digest not in (None, logged.hexdigest()):
            if exists:
                problem = f"does not hold the {step:,} steps of the checkpoint"
                raise UserError(
                    f"{self.path} {problem} (it has {len(lines)} records of them): "
                    "restore it, or delete it to go on without its records"
                )
            logger.warning(
                "%s is missing: the records up to step %s are lost", self.path, f"{step:,}"
            )
        if exists:
            write_atomically(self.path, "".join(f"{line}\n" for line in lines))
        self._logged = logged

    def _read(self) -> Iterator[tuple[str, dict]]:
        """Yield the complete lines with their records."""
        left = _MOST_LOGGED
        for number, line in enumerate(self._lines(), 1):
            content = line.encode()
            record = parsed(content, min(left, _MOST_VALUES))
            left -= num_values(content)
            is_record = record is not None and is_of(_RECORD, _EMPTY_RECORD | record)
            if not is_record or record.get("step", 0) < 0:
                problem = "is not a record of a run (a JSON object with a step)"
                raise UserError(
                    f"line {number} of {self.path} {problem}; restore the file, "
                    "delete it to go on without its records, or choose another --run-dir"
                )
            yield line, from_json(record) if may_have_not_finite(line) else record

    def _lines(self) -> Iterator[str]:
        """Yield the complete lines; none if there is no file."""
        with contextlib.suppress(FileNotFoundError):
            for number, line in enumerate(read_lines(self.path, _MOST_BYTES)):
                if number == _MOST_LINES:
                    raise UserError(f"{self.path} has more than {number:,} lines: restore it")
                yield line.decode("utf-8", "replace")


class _DigestOfLines:
    """SHA-256 of a list of lines as JSON, to which lines can be added."""

    def __init__(self, lines: Iterable[str] = ()):
        self._sha256 = hashlib.sha256(b"[")
        self._between = b""
        for line in lines:
            self.add(line)

    def add(self, line: str) -> None:
        """Add a line."""
        self._sha256.update(self._between + json.dumps(line).encode())
        self._between = b", "

    def hexdigest(self) -> str:
        """Return the SHA-256 of all lines so far."""
        whole = self._sha256.copy()
        whole.update(b"]")
        return whole.hexdigest()
