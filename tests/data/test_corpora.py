"""Check published corpora: where they are looked for, their content, and upstream archives."""

import contextlib
import dataclasses
import functools
import http.server
import itertools
import json
import re
import socket
import tempfile
import threading

import numpy as np
import pytest
import tensorflow_datasets as tfds
import written

from dynskip_jax.data import builders, corpora, find_language_corpus, sentence_corpora, upstream
from dynskip_jax.data.corpora import embedded_corpus
from dynskip_jax.data.sentence_corpora import (
    find_imdb,
    find_sick,
    find_sst,
    imdb_splits,
    read_imdb,
    read_pairs,
    read_trees,
)
from dynskip_jax.errors import UserError

LINES = {
    "train": ["the cat sat", "a dog", "the N <unk>"],
    "dev": ["the cat"],
    "test": ["a dog", "sat"],
}
NAMES = {"train": "train", "dev": "valid", "test": "test"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Hide this machine's data and network; return the list of attempts to reach the network."""
    asked = []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise OSError("the tests have no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(tmp_path / "root"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return asked


def kept():
    """Write `LINES` into the TFDS cache as PTB; return their folder."""
    records = {split: [{"text": line} for line in lines] for split, lines in LINES.items()}
    prepared(corpora.PTB_UPSTREAM, records)
    return corpora.PTB_UPSTREAM.folder


def prepared(data, records):
    """Prepare records as a data set, without its archive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds.download.DownloadManager, "download", lambda self, url: url)
        builders.prepare(dataclasses.replace(data, records=lambda archive: records))


def write(folder, prefix="ptb.", **texts):
    for split, lines in LINES.items():
        text = texts.get(split, "\n".join(lines) + "\n")
        written.write(folder / f"{prefix}{NAMES[split]}.txt", text)
    return folder


def test_typography_and_other_files_do_not_count(tmp_path):
    plain = find_language_corpus(write(tmp_path / "plain")).fingerprint
    (tmp_path / "plain" / "ptb.char.train.txt").write_text("t h e")
    train = "\ufeffthe  cat\tsat\r\n\na dog\n \nthe N <unk>"
    changed = write(tmp_path / "x", train=train, dev="the cat \r\n\r\n", test="a dog\nsat")
    for folder in (tmp_path / "plain", changed):
        assert find_language_corpus(folder).fingerprint == plain


def test_places_in_order(tmp_path, home):
    corpus = find_language_corpus(write(tmp_path / "cats", ""))
    assert corpus.name == "cats" and str(tmp_path / "cats") in corpus.source
    assert find_language_corpus(write(tmp_path / "any")).name == "ptb"
    kept()
    for dataset in (None, "ptb"):
        cached = find_language_corpus(None, dataset)
        assert cached.name == "ptb" and "TFDS cache" in cached.source
        assert cached.fingerprint == find_language_corpus(tmp_path / "any").fingerprint
    write(tmp_path / "root" / "ptb", "")
    assert str(tmp_path / "root") in find_language_corpus(None).source
    write(tmp_path / "root" / "wikitext2", "")
    assert find_language_corpus(None, "wikitext2").name == "wikitext2"
    assert find_language_corpus(None, "pydoc-topics").name == "pydoc-topics"
    assert find_language_corpus(tmp_path / "cats", "dogs").name == "dogs"
    assert not home  # nothing asked the network


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            (None, "ptb"),
            "the dataset 'ptb' was not found (its upstream address does not answer): put",
        ),
        ((None, "penn"), "there is no dataset 'penn': use ptb, pydoc-topics or a sub-folder of"),
        (("nowhere",), "nowhere is no folder that can be read (No such file"),
    ],
)
def test_what_is_not_there(tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(problem)):
        find_language_corpus(*arguments)


def test_a_cache_that_is_damaged_names_its_folder(capfd):
    folder = kept()
    assert capfd.readouterr() == ("", "")
    for name in ("ptb-train.array_record-00000-of-00001", "dataset_info.json"):
        data = (folder / name).read_bytes()
        for keep in (0.5, 0):
            (folder / name).write_bytes(data[: int(len(data) * keep)])
            with pytest.raises(UserError, match=r"cannot be read .*delete that folder") as caught:
                find_language_corpus(None)
            assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
        (folder / name).write_bytes(data)
    assert find_language_corpus(None).name == "ptb"


def ptb_archive():
    lines = {f"./simple-examples/data/ptb.{NAMES[split]}.txt": of for split, of in LINES.items()}
    return written.archive({name: "\n".join(of) + "\n" for name, of in lines.items()})


@contextlib.contextmanager
def served(data, folder, monkeypatch):
    """Serve an archive on this machine, and yield its address."""
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TFDS_DATA_DIR", str(folder / "tfds"))
    monkeypatch.delenv("DYNSKIP_DATA_DIR", raising=False)
    (folder / "www").mkdir()
    (folder / "www" / "archive.tgz").write_bytes(data)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder / "www"))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/archive.tgz"
        finally:
            server.shutdown()
            thread.join()


def serve_as(url, module, name, monkeypatch):
    """Let an address be that of a data set's archive."""
    monkeypatch.setattr(module, name, dataclasses.replace(getattr(module, name), url=url))


def test_ptb_is_downloaded_once(tmp_path, monkeypatch, capfd):
    (tmp_path / "temporary").mkdir()
    with served(ptb_archive(), tmp_path, monkeypatch) as url:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        serve_as(url, corpora, "PTB_UPSTREAM", monkeypatch)
        assert not upstream.is_reachable(url.replace("archive", "absent"))
        assert f"{url}, now kept in {tmp_path}" in find_language_corpus(None).source
        assert not list((tmp_path / "temporary").iterdir())
    again = find_language_corpus(None, "ptb")
    assert "TFDS cache" in again.source
    assert again.fingerprint == find_language_corpus(write(tmp_path / "x")).fingerprint
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"<html>please log in</html>", "is damaged"),
        (written.archive({"simple-examples/data/ptb.train.txt": "x"}), "its download failed"),
    ],
)
def test_broken_downloads_are_not_kept(tmp_path, monkeypatch, data, problem):
    with served(data, tmp_path, monkeypatch) as url:
        serve_as(url, corpora, "PTB_UPSTREAM", monkeypatch)
        serve_as(url, sentence_corpora, "IMDB_UPSTREAM", monkeypatch)
        assert "no PTB: its download failed" in find_language_corpus(None).source
        with pytest.raises(UserError, match=problem):
            find_language_corpus(None, "ptb")
        with pytest.raises(UserError, match=r"IMDB was not found .*its download failed"):
            find_imdb(None)
    assert not list((tmp_path / "tfds").rglob("dataset_info.json"))


def test_imdb_reads_alike_in_all_forms(tmp_path, monkeypatch):
    parts = itertools.product(("train", "test"), ("neg", "pos"), (10, 2))
    files = {
        f"aclImdb/{split}/{kind}/{i}_9.txt": f"so {kind} {i}<br />\r\nyes"
        for split, kind, i in parts
    }
    files["aclImdb/train/unsup/3_0.txt"] = "so unsup 3<br />\r\nyes"
    for name, text in files.items():
        written.write(tmp_path / name, text)
    (tmp_path / "a.tgz").write_bytes(
        written.archive({"./" + name: text for name, text in files.items()})
    )
    found = read_imdb(tmp_path)
    both = itertools.product((("neg", "0"), ("pos", "1")), (2, 10))
    texts = [review[:2] for review in found["train"]]
    assert texts == [(f"so {kind} {i}<br />\nyes", label) for (kind, label), i in both]
    for split in found:
        lines = [json.dumps({"text": r.text, "label": int(r.label)}) for r in found[split]]
        written.write(tmp_path / "json" / f"{split}.jsonl.gz", "\n".join(lines))
    monkeypatch.setattr(upstream, "is_reachable", lambda url: True)
    monkeypatch.setattr(
        tfds.download.DownloadManager, "download", lambda self, url: tmp_path / "a.tgz"
    )
    downloaded = find_imdb(None)
    cached = find_imdb(None)
    assert sentence_corpora.IMDB_URL in downloaded[1] and "the TFDS cache" in cached[1]
    # Other programs find what TFDS promises under this name.
    folder = tmp_path / "tfds" / "imdb_reviews" / "plain_text" / "1.0.0"
    (unlabelled,) = tfds.builder_from_directory(folder).as_data_source("unsupervised")
    assert unlabelled == {"text": b"so unsup 3<br />\nyes", "label": -1}
    others = [read_imdb(tmp_path / name) for name in ("aclImdb", "a.tgz", "json")]
    others += [downloaded[0], cached[0]]
    for other, split in itertools.product(others, found):
        assert [review[:2] for review in other[split]] == [review[:2] for review in found[split]]


def test_what_tfds_has_prepared_is_read(tmp_path, home, capfd):
    """TFDS's own `imdb_reviews` is shuffled, and has a split without labels."""
    records = {
        split: [{"text": f"{split} {i}", "label": i % 2} for i in (3, 0, 2, 1)]
        for split in ("train", "test")
    }
    records["unsupervised"] = [{"text": "not read", "label": -1}]
    folder = tmp_path / "tfds" / "imdb_reviews" / "plain_text" / "1.0.0"
    prepared(sentence_corpora.IMDB_UPSTREAM, records)
    reviews, source = find_imdb(None)
    assert source == f"the TFDS cache {folder}"
    for split, own in reviews.items():
        expected = [(one["text"], str(one["label"])) for one in records[split]]
        assert [review[:2] for review in own] == expected
    assert set(reviews) == {"train", "test"}
    assert not home and capfd.readouterr() == ("", "")

    (path,) = folder.glob("*-train.*")
    data = path.read_bytes()
    for keep in (0, 20, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        with pytest.raises(UserError, match=r"cannot be read .*delete that folder and run again"):
            find_imdb(None)


def test_a_part_of_imdbs_train_is_held_out(tmp_path):
    for split in ("train", "test"):
        lines = [json.dumps({"text": f"word{i}", "label": i % 2}) for i in range(20)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    splits = imdb_splits(read_imdb(tmp_path)).items()
    first = {split: [int(text.words[0][4:]) for text in texts] for split, texts in splits}
    held = np.random.default_rng([0, 20]).permutation(20)[:3]  # results depend on it
    assert first["dev"] == sorted(held) and first["train"] == sorted({*range(20)} - {*held})
    assert first["test"] == list(range(20))
    with pytest.raises(UserError, match=r"has no reviews train/neg/0_9\.txt"):
        read_imdb(tmp_path / "nowhere")


TREE = r"(3 (2 It) (4 (2 -LRB-) (1 a\/b\*)))"


def test_sst(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text(f"{TREE}\n\n(0 Bad)\n")
    (sentences, source) = find_sst(tmp_path)
    (phrases, _) = find_sst(tmp_path, phrases=True)
    assert source == f"the folder {tmp_path}"
    nodes = (("it ( a/b*", 3), ("it", 2), ("( a/b*", 4), ("(", 2), ("a/b*", 1), ("bad", 0))
    assert phrases["train"] == [(words.split(), label, ()) for words, label in nodes]
    assert [sentences["dev"]] * 3 == [*sentences.values()] and phrases["dev"] == sentences["dev"]
    assert sentences["dev"] == [phrases["train"][0], phrases["train"][-1]]


HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n"


def test_sick(tmp_path):
    for name in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        (tmp_path / name).write_text(HEADER + "1\tA cat isn't here.\tYes\t3.5\r\n")
    pairs, _ = find_sick(tmp_path)
    assert list(pairs) == ["train", "dev", "test"]
    assert pairs["dev"] == [(["a", "cat", "is", "n't", "here", "."], 3.5, ["yes"])]


@pytest.mark.parametrize(
    ("read", "text", "problem"),
    [
        (read_trees, "\n(7 a)", "line 2: no tree such as"),
        (read_trees, "(2 \u00a0)", "line 1: no tree such as"),
        (read_trees, "\n(2 (2 yes)\n", "line 2: no tree such as"),
        (
            read_pairs,
            "a\tb\nc\td\n",
            "line 2: expected text or a number under 'sentence_A' among a, b",
        ),
        (read_pairs, HEADER + "1\ta\tb\n", "line 2: 3 columns, but the first line has 4"),
        (read_pairs, HEADER + "1\ta\tb\tnan\n", "line 2: the rating 'nan' is none from 1 to 5"),
        (read_pairs, HEADER + "1\ta\tb\t6\n", "line 2: the rating '6' is none from 1 to 5"),
        (read_pairs, HEADER, "holds no pair below its first line"),
    ],
)
def test_bad_lines_are_named(tmp_path, read, text, problem):
    written.assert_refused(read, written.write(tmp_path / "x.txt", text), problem)


def test_the_embedded_corpus():
    words = embedded_corpus()
    assert 30_000 < words.train.size < 100_000 and words.min_count == 2
    total = sum(ids.size for ids in words.splits.values())
    assert (
        0.75 < words.train.size / total < 0.85
        and min(words.dev.size, words.test.size) > 0.07 * total
    )
    assert embedded_corpus().fingerprint == words.fingerprint
