"""Check the reading of user files: line ends, byte-order marks, invalid bytes, pipes, archives, JSON."""

import gzip
import io
import os
import struct
import zipfile

import pytest

from dynskip_jax.data import text_files
from dynskip_jax.data.text_files import iter_lines, parse_json, read_text, stream_lines
from dynskip_jax.errors import UserError


def error_of(read, *arguments):
    with pytest.raises(UserError) as caught:
        list(read(*arguments))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 300
    return message


def lines_of(tmp_path, data, name="x.txt"):
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return list(iter_lines(tmp_path / name))


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_line_ends_and_marks_of_all_systems(tmp_path, monkeypatch, name, end, chunk):
    monkeypatch.setattr(text_files, "_CHUNK", chunk)
    data = "\ufeffä b||c\x0cd\x85e|".encode().replace(b"|", end)
    assert lines_of(tmp_path, data, name) == ["ä b", "", "c\x0cd\x85e"]
    assert lines_of(tmp_path, data.removesuffix(end), name) == ["ä b", "", "c\x0cd\x85e"]
    assert read_text(tmp_path / name) == "ä b\n\nc\x0cd\x85e"


def test_no_lines_and_mixed_ends(tmp_path):
    assert lines_of(tmp_path, b"") == []
    assert lines_of(tmp_path, b"\n") == [""]
    assert lines_of(tmp_path, b"a\rb\nc\r\n\rd") == ["a", "b", "c", "", "d"]


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
def test_bytes_that_are_no_text_are_located(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text_files, "_CHUNK", chunk)
    path = tmp_path / "x.txt"
    for data, offset in (("ä\r\nb".encode() + b"\xff c", 5), ("ä\r\nb".encode() + b"\xe2\x82", 5)):
        path.write_bytes(data)
        assert f"{path} is not UTF-8 text (line 2, byte offset {offset})" in error_of(iter_lines, path)


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    assert "pipe.txt is a named pipe or a device" in error_of(iter_lines, tmp_path / "pipe.txt")
    assert "is a named pipe" in error_of(iter_lines, tmp_path / "pipe.txt", "member")
    assert "is a named pipe or a device" in error_of(iter_lines, "/dev/zero")


def test_names_that_cannot_be_read(tmp_path):
    assert "it is a folder" in error_of(iter_lines, tmp_path)
    assert "is not there" in error_of(iter_lines, tmp_path / "\x1b[31m")
    assert "null byte" in error_of(iter_lines, "a\0b")
    assert "cannot be read" in error_of(iter_lines, "x" * 5000)


def archive(tmp_path, method=zipfile.ZIP_DEFLATED):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("a.txt", "\ufeffone\r\ntwo\r" * 50)
    return path


def changed(path, signature, offset, value):
    """Write `value` as two bytes at `offset` of a zip archive's first header with this `signature`."""
    data = bytearray(path.read_bytes())
    start = data.find(signature)
    data[start + offset : start + offset + 2] = struct.pack("<H", value)
    path.write_bytes(data)


def test_members_of_archives(tmp_path):
    assert list(iter_lines(archive(tmp_path), "a.txt"))[1:3] == ["two", "\ufeffone"]
    assert "no item named" in error_of(iter_lines, tmp_path / "x.zip", "b.txt")
    (tmp_path / "y.zip").write_bytes(b"text")
    assert "is no zip archive" in error_of(iter_lines, tmp_path / "y.zip", "a.txt")
    assert "cannot be read" in error_of(iter_lines, tmp_path / "z.zip", "a.txt")


def test_archives_that_python_cannot_unpack(tmp_path):
    path = archive(tmp_path)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        changed(path, signature, offset, 1)
    assert "is encrypted" in error_of(iter_lines, path, "a.txt")
    path = archive(tmp_path)
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        changed(path, signature, offset, 99)
    assert "unpack it" in error_of(iter_lines, path, "a.txt")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damaged_archives(tmp_path, method):
    path = archive(tmp_path, method)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            list(iter_lines(path, "a.txt"))
        except UserError as error:
            assert len(str(error)) < 300


def test_json():
    assert parse_json('{"a": "\\u00e9\\ud83d\\ude00"}') == {"a": "é😀"}
    for text, reason in (
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('["\\ud800"]', "half of a character"),
        ('{"\\udc00": 1}', "half of a character"),
        ("{", "line 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_json(text)


def test_lines_of_a_stream_come_at_once():
    reader, writer = os.pipe()
    with open(reader, "rb") as stream, open(writer, "wb", buffering=0) as source:
        lines = stream_lines(stream)
        source.write("\ufeffone\ntw".encode())
        assert next(lines) == "one"
        source.write(b"o\r\nthree\rfour")
        assert next(lines) == "two" and next(lines) == "three"
        source.close()
        assert list(lines) == ["four"]
    assert "standard input is not UTF-8 text (line 2, byte offset 2)" in error_of(
        stream_lines, io.BytesIO(b"a\n\xff")
    )
