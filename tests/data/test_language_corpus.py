"""Check where a corpus is looked for, in which order, and the error if it is missing."""

import hashlib
import socket
import subprocess
import sys
import time

import pytest

from dynskip_jax.data import find_language_corpus, ptb, read_ptb
from dynskip_jax.errors import UserError

TEXTS = {"train": "the cat sat\nthe <unk>\n", "valid": "the cat\n", "test": "a cat\nsat\n"}
COUNTS = {"train": 7, "valid": 3, "test": 5}


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Block all network access; return the list of the attempts."""
    asked = []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise OSError("the tests have no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return asked


@pytest.fixture
def small_ptb(monkeypatch):
    """Make `ptb` accept TEXTS as the published corpus."""
    monkeypatch.setattr(ptb, "PUBLISHED_COUNTS", COUNTS)
    sha256 = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in TEXTS.items()}
    monkeypatch.setattr(ptb, "PUBLISHED_SHA256", sha256)


@pytest.fixture
def find(tmp_path):
    """Return `find_language_corpus` with an empty environment and an empty TFDS directory."""

    def find(data=None, dataset=None, *, environ=None, tfds_dir=tmp_path / "tfds", **kwargs):
        data = str(data) if data is not None else None
        return find_language_corpus(data, dataset, environ=environ or {}, tfds_dir=tfds_dir, **kwargs)

    return find


def write(folder, prefix="", **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in (TEXTS | texts).items():
        (folder / f"{prefix}{split}.txt").write_text(text)
    return folder


def test_user_folder_comes_first(find, tmp_path, network):
    write(tmp_path / "root" / "ptb")
    corpus = find(write(tmp_path / "cats"), environ={"DYNSKIP_DATA_DIR": str(tmp_path / "root")})
    assert corpus.name == "cats"
    assert str(tmp_path / "cats") in corpus.source
    assert not network


def test_user_folder_with_ptb_files_is_ptb(find, tmp_path, small_ptb):
    assert find(write(tmp_path / "any", "ptb.")).name == "ptb"


@pytest.mark.parametrize(
    ("folder", "prefix", "dataset"), [("any", "ptb.", None), ("ptb", "", None), ("any", "", "ptb")]
)
def test_what_is_called_ptb_has_ptbs_text(find, tmp_path, folder, prefix, dataset):
    with pytest.raises(
        UserError, match=r"looks truncated: 7 tokens.*call neither its folder nor its files ptb$"
    ):
        find(write(tmp_path / folder, prefix), dataset)


def test_a_text_of_ones_own_is_free(find, tmp_path, small_ptb):
    folder = write(tmp_path / "cats", valid="the dog\n")
    assert find(folder).name == "cats"
    with pytest.raises(UserError, match="other words or lines in the valid split"):
        find(folder, "ptb")


def test_a_text_of_ones_own_has_any_name(find, tmp_path):
    folder, file = write(tmp_path / "v2"), tmp_path / "v2.txt"
    file.write_text("the cat\n" * 9)
    for data in (folder, file):
        corpus = find(data, "cats")
        assert corpus.name == "cats" and str(data) in corpus.source
    with pytest.raises(UserError, match="pydoc-topics comes with Python"):
        find(folder, "pydoc-topics")


def test_missing_user_folder_says_what_to_put_there(find, tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist.*train\.txt.*--data"):
        find(tmp_path / "nowhere")


def test_data_variable_comes_before_the_cache(find, tmp_path, small_ptb, network):
    ptb.prepare_ptb(tmp_path / "tfds", write(tmp_path / "text", "ptb."))
    write(tmp_path / "root" / "ptb", "ptb.")
    corpus = find(environ={"DYNSKIP_DATA_DIR": str(tmp_path / "root")})
    assert corpus.name == "ptb"
    assert "$DYNSKIP_DATA_DIR" in corpus.source
    assert not network


def test_cache_comes_after_an_empty_data_variable(find, tmp_path, small_ptb, network):
    text = write(tmp_path / "text", "ptb.")
    ptb.prepare_ptb(tmp_path / "tfds", text)
    (tmp_path / "root").mkdir()
    environ = {"DYNSKIP_DATA_DIR": str(tmp_path / "root")}
    for dataset in (None, "ptb"):
        corpus = find(dataset=dataset, environ=environ)
        assert corpus.name == "ptb"
        assert "TFDS cache" in corpus.source
        assert corpus.fingerprint == read_ptb(text).fingerprint
    environ["TFDS_DATA_DIR"] = str(tmp_path / "tfds")
    assert "TFDS cache" in find(environ=environ, tfds_dir=None).source
    assert not network


def test_download_is_kept_for_the_next_time(find, tmp_path, small_ptb, monkeypatch):
    text = write(tmp_path / "text", "ptb.")
    prepare = ptb.prepare_ptb
    monkeypatch.setattr(ptb, "is_reachable", lambda url: True)
    monkeypatch.setattr(ptb, "prepare_ptb", lambda directory: prepare(directory, text))
    assert ptb.UPSTREAM_URL in find().source
    monkeypatch.setattr(ptb, "is_reachable", lambda url: pytest.fail("asked the network"))
    assert "TFDS cache" in find().source


def test_without_anything_the_embedded_corpus_is_there_at_once(find, network):
    start = time.monotonic()
    corpus = find()
    assert time.monotonic() - start < 3
    assert corpus.name == "pydoc-topics"
    assert "pydoc_data.topics" in corpus.source and "does not answer" in corpus.source
    assert network  # a download was attempted and refused


def test_downloading_can_be_switched_off(find, network):
    assert find(allow_download=False).name == "pydoc-topics"
    with pytest.raises(UserError, match="switched off"):
        find(dataset="ptb", allow_download=False)
    assert not network


def test_failed_download_is_told(find, monkeypatch):
    def fail(directory):
        raise RuntimeError("the archive\nis damaged")

    monkeypatch.setattr(ptb, "is_reachable", lambda url: True)
    monkeypatch.setattr(ptb, "prepare_ptb", fail)
    corpus = find()
    assert corpus.name == "pydoc-topics"
    assert "the archive is damaged" in corpus.source


def test_cache_that_cannot_be_written(find, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(ptb, "is_reachable", lambda url: True)
    assert find(tfds_dir=tmp_path / "file").name == "pydoc-topics"


def test_ptb_asked_for_and_not_found(find):
    with pytest.raises(UserError, match=r"'ptb' was not found.*--data DIR.*\$DYNSKIP_DATA_DIR/ptb") as caught:
        find(dataset="ptb")
    assert "\n" not in str(caught.value)


def test_embedded_corpus_by_name(find, tmp_path, network):
    assert find(dataset="pydoc-topics").name == "pydoc-topics"
    assert not network


def test_other_corpora_below_the_data_variable(find, tmp_path):
    write(tmp_path / "root" / "wikitext2")
    environ = {"DYNSKIP_DATA_DIR": str(tmp_path / "root")}
    assert find(dataset="wikitext2", environ=environ).name == "wikitext2"


def test_min_count_of_a_text_of_ones_own(find, tmp_path):
    folder = write(tmp_path / "root" / "cats", train="the cat sat\nthe dog\n")
    environ = {"DYNSKIP_DATA_DIR": str(tmp_path / "root")}
    for min_count, used, size in ((None, 2, 3), (2, 2, 3), (3, 3, 2)):
        for corpus in (
            find(folder, min_count=min_count),
            find(dataset="cats", environ=environ, min_count=min_count),
        ):
            assert corpus.min_count == used and corpus.sizes["vocabulary"] == size
    with pytest.raises(UserError, match="use min_count 2"):
        find(folder, min_count=1)


def test_min_count_of_the_embedded_corpus(find):
    usual, fewer = find(dataset="pydoc-topics"), find(min_count=5, allow_download=False)
    assert (usual.min_count, fewer.min_count) == (2, 5)
    assert fewer.sizes["vocabulary"] < usual.sizes["vocabulary"]
    assert fewer.unknown["train"] > usual.unknown["train"]
    with pytest.raises(UserError, match="use min_count 2"):
        find(dataset="pydoc-topics", min_count=1)


def test_ptb_has_its_own_vocabulary(find, tmp_path, small_ptb):
    folder = write(tmp_path / "any", "ptb.")
    assert find(folder, min_count=1).fingerprint == find(folder).fingerprint
    ptb.prepare_ptb(tmp_path / "tfds", folder)
    for data in (folder, None):
        with pytest.raises(UserError, match=r"published one.* leave out min_count, not 2"):
            find(data, min_count=2)


def test_blank_lines_can_be_kept(find, tmp_path):
    folder = write(tmp_path / "root" / "cats", test="a cat\n\nsat\n")
    environ = {"DYNSKIP_DATA_DIR": str(tmp_path / "root")}
    for blank_lines, size in ((None, 5), (False, 5), (True, 6)):
        assert find(folder, blank_lines=blank_lines).test.size == size
        assert find(dataset="cats", environ=environ, blank_lines=blank_lines).test.size == size


@pytest.mark.parametrize("dataset", ["penn", "", "..", "../root", "/"])
def test_unknown_name_lists_the_known_ones(find, tmp_path, dataset):
    (tmp_path / "root").mkdir()
    with pytest.raises(UserError, match="ptb, pydoc-topics"):
        find(dataset=dataset, environ={"DYNSKIP_DATA_DIR": str(tmp_path / "root")})


def test_import_is_light():
    code = (
        "import dynskip_jax.data, sys; print([m for m in ('jax', 'tensorflow_datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_one_file_is_not_called_ptb(find, tmp_path):
    for name in ("ptb.txt", "novel.txt"):
        (tmp_path / name).write_text("the cat\n" * 9)
    assert find(tmp_path / "novel.txt").name == "novel"
    for arguments in ((tmp_path / "ptb.txt",), (tmp_path / "novel.txt", "ptb")):
        with pytest.raises(UserError, match="is one file, and PTB is three"):
            find(*arguments)
