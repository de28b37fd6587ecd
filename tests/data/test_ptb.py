"""Check the Penn Treebank corpus: published counts and content, the TFDS cache, the upstream archive."""

import contextlib
import functools
import gzip
import hashlib
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

LINES = {"train": ["the cat sat", " a dog", "the N <unk>"], "valid": ["the cat"], "test": ["a dog", "sat"]}
# Train has 8 words and 3 line ends. The vocabulary is: the cat sat a dog N <unk> <eos>.
COUNTS = {"train": 11, "valid": 3, "test": 5}
SIZES = COUNTS | {"vocabulary": 8}
NORMAL_FORMS = {"train": b"the cat sat\na dog\nthe N <unk>\n", "valid": b"the cat\n", "test": b"a dog\nsat\n"}
SHA256 = {split: hashlib.sha256(text).hexdigest() for split, text in NORMAL_FORMS.items()}


@pytest.fixture
def small_ptb(monkeypatch):
    """Make `ptb` accept LINES as the published corpus."""
    monkeypatch.setattr(ptb, "PUBLISHED_COUNTS", COUNTS)
    monkeypatch.setattr(ptb, "PUBLISHED_SHA256", SHA256)


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


@pytest.mark.slow
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


@pytest.mark.parametrize("split", list(COUNTS))
@pytest.mark.parametrize("longer", [True, False])
def test_each_count_is_checked(small_ptb, split, longer):
    ptb.check_published(LINES, "here")
    first, *others = LINES[split]
    lines = [f"{first} more", *others] if longer else [first.rsplit(" ", 1)[0], *others]
    found = COUNTS[split] + (1 if longer else -1)
    looks = "is not the published one" if longer else "looks truncated"
    with pytest.raises(UserError, match=rf"{looks}: {found} .*{split}.*expected {COUNTS[split]}"):
        ptb.check_published(LINES | {split: lines}, "here")


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ("train", "the cat sat\na dog\nthe N cat\n"),
        ("train", "the cat sat\na dog\nthe <unk> N\n"),
        ("train", "a dog\nthe cat sat\nthe N <unk>\n"),
        ("train", "the cat\nsat a dog\nthe N <unk>\n"),
        ("valid", "the Cat\n"),
        ("test", "a dog\nran\n"),
    ],
)
def test_as_many_words_but_others_are_refused(small_ptb, folder, split, text):
    (folder / f"ptb.{split}.txt").write_text(text)
    with pytest.raises(UserError) as caught:
        read_ptb(folder)
    message = str(caught.value)
    assert f"other words or lines in the {split} split" in message and "\n" not in message
    assert str(folder)[-20:] in message and ptb.UPSTREAM_URL in message and SHA256[split][:12] in message


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", " \n"),
        lambda text: "\ufeff" + text.rstrip("\n"),
        lambda text: text.replace("\n", "\n\n") + "\n\n",
        lambda text: text.replace(" ", "  \t"),
    ],
    ids=["windows", "blanks-at-ends", "byte-order-mark-and-no-last-end", "blank-lines", "runs-of-blanks"],
)
def test_typography_does_not_count(small_ptb, folder, change):
    plain = read_ptb(folder).fingerprint
    for split in COUNTS:
        path = folder / f"ptb.{split}.txt"
        path.write_bytes(change(path.read_text()).encode())
    assert read_ptb(folder).fingerprint == plain


@pytest.mark.parametrize("split", list(COUNTS))
def test_a_changed_word_of_the_real_corpus_is_noticed(split):
    lines = ptb.read_published_lines(real_ptb())
    *before, last = lines[split]
    changed = [*before, " ".join([*last.split()[:-1], "zebra"])]
    with pytest.raises(UserError, match=f"other words or lines in the {split} split"):
        ptb.check_published(lines | {split: changed}, "here")


def test_only_files_of_that_name_are_read(small_ptb, folder):
    # The upstream archive also contains ptb.char.*.txt.
    (folder / "ptb.char.train.txt").write_text("t h e\n")
    assert read_ptb(folder).sizes == SIZES


def test_missing_file_is_named(small_ptb, folder):
    (folder / "ptb.valid.txt").unlink()
    with pytest.raises(UserError, match=r"valid split.*ptb\.valid\.txt"):
        read_ptb(folder)


def test_cache_keeps_the_lines(small_ptb, folder, tmp_path, capfd, nothing_temporary_left):
    ptb.prepare_ptb(tmp_path / "tfds", folder)
    corpus = ptb.load_prepared_ptb(tmp_path / "tfds")
    assert corpus.fingerprint == read_ptb(folder).fingerprint
    assert str(tmp_path / "tfds") in corpus.source
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [("the\n", "looks truncated"), ("the dog\n", "other words or lines in the valid split")],
)
def test_nothing_is_prepared_from_another_text(small_ptb, folder, tmp_path, text, message):
    (folder / "ptb.valid.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        ptb.prepare_ptb(tmp_path / "tfds", folder)
    assert not list((tmp_path / "tfds").rglob("dataset_info.json"))


def test_cache_with_another_text_is_damaged(small_ptb, folder, tmp_path, monkeypatch):
    ptb.prepare_ptb(tmp_path / "tfds", folder)
    monkeypatch.setattr(ptb, "PUBLISHED_SHA256", SHA256 | {"test": SHA256["valid"]})
    with pytest.raises(UserError) as caught:
        ptb.load_prepared_ptb(tmp_path / "tfds")
    message = str(caught.value)
    assert "is damaged" in message and "in the test split" in message and "delete that folder" in message


@pytest.mark.parametrize("file", ["dataset_info.json", "ptb-test.array_record-00000-of-00001"])
def test_damaged_cache_names_the_folder(small_ptb, folder, tmp_path, file):
    ptb.prepare_ptb(tmp_path, folder)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError) as caught:
        ptb.load_prepared_ptb(tmp_path)
    assert f"{path.parent} is damaged" in str(caught.value) and "\n" not in str(caught.value)


def make_archive(lines=LINES):
    """Return an archive in the upstream layout, with the same bytes whenever it is made."""
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


def test_download_from_an_archive(small_ptb, folder, tmp_path, monkeypatch, no_proxy):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "archive.tgz").write_bytes(make_archive())
    with serve(tmp_path / "www") as address:
        monkeypatch.setattr(ptb, "UPSTREAM_URL", f"{address}/archive.tgz")
        assert ptb.is_reachable(ptb.UPSTREAM_URL)
        assert not ptb.is_reachable(f"{address}/absent.tgz")
        ptb.prepare_ptb(tmp_path / "tfds")
    assert ptb.load_prepared_ptb(tmp_path / "tfds").fingerprint == read_ptb(folder).fingerprint


def test_download_of_another_text_is_not_kept(small_ptb, tmp_path, monkeypatch, no_proxy):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "archive.tgz").write_bytes(make_archive(LINES | {"test": ["a dog", "ran"]}))
    with serve(tmp_path / "www") as address:
        monkeypatch.setattr(ptb, "UPSTREAM_URL", f"{address}/archive.tgz")
        with pytest.raises(UserError, match="other words or lines in the test split"):
            ptb.prepare_ptb(tmp_path / "tfds")
    assert not list((tmp_path / "tfds").rglob("dataset_info.json"))


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
