"""The Penn Treebank corpus: published counts, the TFDS cache, the upstream archive."""

import contextlib
import functools
import gzip
import http.server
import io
import os
import tarfile
import threading
import time
from pathlib import Path

import pytest

from dynskip_jax.data import ptb, read_ptb
from dynskip_jax.errors import UserError

LINES = {"train": ["the cat sat", " a dog ", "the N <unk>"], "valid": ["the cat"], "test": ["a dog", "sat"]}
# 8 words and 3 line ends; the cat sat a dog N <unk> <eos>.
COUNTS = {"train": 11, "valid": 3, "test": 5, "vocabulary": 8}


@pytest.fixture
def small_counts(monkeypatch):
    monkeypatch.setattr(ptb, "PUBLISHED_COUNTS", COUNTS)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for split, lines in LINES.items():
        (folder / f"ptb.{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def real_ptb():
    places = [Path(__file__).parents[2] / ".." / "shared" / "data"]
    if os.environ.get("DYNSKIP_DATA_DIR"):
        places.insert(0, Path(os.environ["DYNSKIP_DATA_DIR"]))
    for place in places:
        if (place / "ptb" / "ptb.train.txt").is_file():
            return place / "ptb"
    pytest.skip("needs ptb.train.txt, ptb.valid.txt and ptb.test.txt in $DYNSKIP_DATA_DIR/ptb")


def test_published_counts_and_cache(tmp_path):
    corpus = read_ptb(real_ptb())
    assert corpus.name == "ptb"
    assert corpus.sizes == {"train": 929_589, "valid": 73_760, "test": 82_430, "vocabulary": 10_000}
    # The most frequent tokens of the training text, and its <unk> (45,020 times).
    assert corpus.vocabulary.tokens[:3] == ("the", "<unk>", "<eos>")
    assert (corpus.train == corpus.vocabulary.index["<unk>"]).sum() == 45_020
    assert corpus.min_count == 1
    assert corpus.unknown == {"train": 45_020 / 929_589, "valid": 3_485 / 73_760, "test": 4_794 / 82_430}
    assert corpus.fingerprint == "c9bd4029319922bf19451588cc9b2adca0bd48440b287d75228d01a4d744d235"
    ptb.prepare_ptb(tmp_path, real_ptb())
    assert ptb.load_prepared_ptb(tmp_path).fingerprint == corpus.fingerprint


def test_truncated_corpus_is_refused_with_its_counts(folder):
    with pytest.raises(
        UserError, match=r"looks truncated: 11 tokens in the train split, expected 929,589.*http"
    ):
        read_ptb(folder)


@pytest.mark.parametrize("part", list(COUNTS))
@pytest.mark.parametrize("difference", [-1, 1])
def test_each_count_is_checked(small_counts, part, difference):
    ptb.check_counts(COUNTS, "here")
    looks = "looks truncated" if difference < 0 else "is not the published one"
    found = COUNTS[part] + difference
    with pytest.raises(UserError, match=rf"{looks}: {found} .*{part}.*expected {COUNTS[part]}"):
        ptb.check_counts(COUNTS | {part: found}, "here")


def test_only_files_of_that_name_are_read(small_counts, folder):
    # The upstream archive has ptb.char.*.txt beside them.
    (folder / "ptb.char.train.txt").write_text("t h e\n")
    assert read_ptb(folder).sizes == COUNTS


def test_missing_file_is_named(small_counts, folder):
    (folder / "ptb.valid.txt").unlink()
    with pytest.raises(UserError, match=r"valid split.*ptb\.valid\.txt"):
        read_ptb(folder)


def test_cache_keeps_the_lines(small_counts, folder, tmp_path, capfd):
    ptb.prepare_ptb(tmp_path / "tfds", folder)
    corpus = ptb.load_prepared_ptb(tmp_path / "tfds")
    assert corpus.fingerprint == read_ptb(folder).fingerprint
    assert str(tmp_path / "tfds") in corpus.source
    assert capfd.readouterr() == ("", "")


def test_nothing_is_prepared_from_wrong_counts(folder, tmp_path):
    with pytest.raises(UserError, match="looks truncated"):
        ptb.prepare_ptb(tmp_path / "tfds", folder)
    assert not list((tmp_path / "tfds").rglob("dataset_info.json"))


@pytest.mark.parametrize("file", ["dataset_info.json", "ptb-test.array_record-00000-of-00001"])
def test_damaged_cache_names_the_folder(small_counts, folder, tmp_path, file):
    ptb.prepare_ptb(tmp_path, folder)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError) as caught:
        ptb.load_prepared_ptb(tmp_path)
    assert f"{path.parent} is damaged" in str(caught.value) and "\n" not in str(caught.value)


def make_archive(lines=LINES):
    """The upstream archive's layout, byte for byte the same whenever it is made."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for split, text in lines.items():
            data = ("\n".join(text) + "\n").encode()
            info = tarfile.TarInfo(f"./simple-examples/data/ptb.{split}.txt")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder):
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_download_from_an_archive(small_counts, folder, tmp_path, monkeypatch, no_proxy):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "archive.tgz").write_bytes(make_archive())
    with serve(tmp_path / "www") as address:
        monkeypatch.setattr(ptb, "UPSTREAM_URL", f"{address}/archive.tgz")
        assert ptb.is_reachable(ptb.UPSTREAM_URL)
        assert not ptb.is_reachable(f"{address}/absent.tgz")
        ptb.prepare_ptb(tmp_path / "tfds")
    assert ptb.load_prepared_ptb(tmp_path / "tfds").fingerprint == read_ptb(folder).fingerprint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>please log in</html>", "damaged"),
        (make_archive()[:100], "damaged"),
        (make_archive({"train": ["x"]}), r"has no .*ptb\.valid\.txt"),
    ],
    ids=["a-page-of-html", "cut-off", "a-split-missing"],
)
def test_broken_archive(tmp_path, data, message):
    path = tmp_path / "archive.tgz"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message):
        ptb.extract_ptb(path, tmp_path)


def test_unreachable_builder_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(ptb, "is_reachable", lambda url: False)
    with pytest.raises(UserError, match=r"does not answer.*ptb\.train\.txt"):
        ptb.prepare_ptb(tmp_path)


@pytest.mark.parametrize("reason", [OSError("no route"), TimeoutError()])
def test_no_network_is_found_out_at_once(monkeypatch, reason):
    def refuse(url, timeout):
        raise reason

    monkeypatch.setattr(ptb.urllib.request, "urlopen", refuse)
    start = time.monotonic()
    assert not ptb.is_reachable("http://example.invalid/")
    assert time.monotonic() - start < 1


def test_a_network_that_swallows_everything_is_given_up(monkeypatch):
    released = threading.Event()

    def hang(url, timeout):
        released.wait(30)
        raise TimeoutError

    monkeypatch.setattr(ptb.urllib.request, "urlopen", hang)
    start = time.monotonic()
    assert not ptb.is_reachable("http://example.invalid/", seconds=0.2)
    assert time.monotonic() - start < 2
    released.set()
