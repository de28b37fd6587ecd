"""Check how files of users are found and read, and that each bad one is named in one line."""

import gzip
import io
import os
import re
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynskip_jax.data.files import (
    find_splits,
    iter_lines,
    named_folder,
    read_file,
    stream_lines,
    tar_files,
)
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import printable, quoted

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), max_size=5))


@given(LINES, st.sampled_from(["\n", "\r", "\r\n"]), st.booleans(), st.booleans())
def test_lines_of_all_systems(lines, end, has_mark, has_last_end):
    text = "\ufeff" * has_mark + end.join(lines) + end * has_last_end
    expected = lines if has_last_end else lines[: len(lines) - (not lines or not lines[-1])]
    assert list(stream_lines(io.BytesIO(text.encode()))) == (expected or [""] * has_last_end)


def test_lines_come_as_they_are_typed():
    read, write = os.pipe()
    with open(read, "rb") as stream:
        lines = stream_lines(stream)
        for text in ("one\n", "two\n"):
            os.write(write, text.encode())
            assert next(lines) == text.strip()
        os.close(write)
        assert list(lines) == []


CUT = gzip.compress(os.urandom(9000).hex().encode())[:5000]
BAD = {
    "absent": (None, "is no file"),
    "cut.gz": (CUT, "fetch it again"),
    "latin": (b"ok\r\n\ra \xff", "is no UTF-8 text: convert it"),
    "cut": ("é".encode()[:1], "is no UTF-8 text"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(tmp_path, name):
    data, problem = BAD[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        list(iter_lines(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


def test_tar_archives_are_read_and_never_unpacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tarfile.open("a.tgz", "w:gz") as tar:
        for name in ("./top/a.txt", "top/b.txt", "top/../../c.txt", "other"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ok"))
        link = tarfile.TarInfo("top/d.txt")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        tar.addfile(link)
    found = list(tar_files("a.tgz", re.compile(r"(?:\./)?top/([a-z])\.txt"), "http://x"))
    assert [(name[1], data) for name, data in found] == [("a", b"ok"), ("b", b"ok")]
    assert os.listdir() == ["a.tgz"]
    (tmp_path / "b.tgz").write_bytes((tmp_path / "a.tgz").read_bytes()[:40])
    for name in ("b.tgz", "absent"):
        with pytest.raises(
            UserError, match=r"archive from http://x is damaged \(.*try again later"
        ):
            list(tar_files(name, re.compile("x"), "http://x"))


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    name = os.fsdecode(b"caf\xe9.py")  # no UTF-8
    (tmp_path / name).write_bytes(b"x = 1\n")
    assert read_file(tmp_path / name, 6) == b"x = 1\n"
    os.mkfifo(tmp_path / "pipe")
    refused = {
        tmp_path / name: "has more than 5 bytes",
        tmp_path / "pipe": "is no file",
        "/dev/zero": "is no file",
        tmp_path: "is no file",
        tmp_path / ("x" * 300): "is no file",
        "a\0b": "is no file",
    }
    for path, problem in refused.items():
        with pytest.raises(UserError, match=re.escape(problem)):
            read_file(path, 5)


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens.gz", "wiki.test.tokens"),
        ("my-train.txt", "my_dev.txt", "own.TEST.txt"),
        ("eng.train", "eng.testa", "eng.testb"),
    ],
)
def test_splits_have_many_names(tmp_path, names):
    for name in (*names, "trainer.txt", "mytest.txt", "readme.md", "train.pdf"):
        (tmp_path / name).touch()
    found = find_splits(tmp_path, ("txt", "tokens", ""))
    assert tuple(found[split].name for split in ("train", "dev", "test")) == names
    (tmp_path / names[1]).unlink()
    with pytest.raises(
        UserError, match=r"no file for the dev split: put one there named valid\.txt"
    ):
        find_splits(tmp_path, ("txt", "tokens", ""))


def test_named_folders_stay_below_their_root(tmp_path, monkeypatch):
    (tmp_path / "root" / "ptb").mkdir(parents=True)
    assert named_folder("ptb") is None
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(tmp_path / "root"))
    assert named_folder("ptb") == tmp_path / "root" / "ptb"
    for name in ("..", ".", "", "../root", "ptb/..", "/", "absent"):
        assert named_folder(name) is None, name


def test_scripts_stay_and_controls_do_not():
    words = "naïve 日本語 सत्र می‌خواهم 👩‍👧 ÅÅ"
    assert printable(words) == words
    assert (
        printable("a\x1b[31m\u202e\u2028\ufeff\ud800\n") == r"a\x1b[31m\u202e\u2028\ufeff\ud800\n"
    )
    assert len(quoted({"a": ["x" * 10**6]})) <= 60
