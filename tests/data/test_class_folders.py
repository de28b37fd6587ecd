"""Check folders of classes with links of every kind, and with the names of splits."""

import os
import re

import pytest
from written import assert_refused, write

from dynskip_jax.data.class_folders import class_files
from dynskip_jax.data.labelled import find_labelled_text
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.errors import UserError


def classes(folder, names=("a", "b"), count=4):
    for name in names:
        for number in range(count):
            write(folder / name / f"{number}.txt", f"a text of {name}, no {number}")
    return folder


def texts(folder):
    """Return the number of texts of each class, and the notes."""
    notes = DataNotes()
    found = list(class_files(folder, notes))
    for path, label in found:
        assert f"a text of {label}" in path.read_text()
    return {
        name: [own.label for own in found].count(name) for name in {own.label for own in found}
    }, notes


LOOP = "links to a folder above them"
READ = "links to what is read already"
LINKS = {  # place and target of links, and what is told of them
    "to the folder itself": ({"a/latest": "."}, LOOP),
    "to the parent": ({"a/up": ".."}, LOOP),
    "to the parent's parent": ({"a/up": "../.."}, LOOP),
    "from deep to its class": ({"a/deep/er/up": "../.."}, LOOP),
    "beside the classes": ({"all": "."}, LOOP),
    "to the root": ({"a/root": "/"}, LOOP),
    "to a sibling": ({"a/b": "../b"}, READ),
    "to another class, under a new name": ({"c": "b"}, READ),
    "to a file": ({"a/again.txt": "0.txt"}, READ),
    "to a file of another class": ({"a/other.txt": "../b/0.txt"}, READ),
    "to a link": ({"a/one": "two", "a/two": "../b"}, READ),
    "in a circle": ({"a/one": "two", "a/two": "one"}, "links that lead nowhere"),
    "to itself": ({"a/self": "self"}, "links that lead nowhere"),
    "nowhere": ({"a/gone": "absent", "b/gone.txt": "../absent.txt"}, "links that lead nowhere"),
}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("by", ["relative", "absolute"])
def test_each_real_file_is_read_once(tmp_path, kind, by):
    folder = classes(tmp_path / "data")
    links, told = LINKS[kind]
    for name, target in links.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_relative = by == "relative" or target == "/"
        path.symlink_to(target if is_relative else os.path.normpath(path.parent / target))
    counts, notes = texts(folder)
    assert counts == {"a": 4, "b": 4}
    (line,) = notes.lines
    assert line.startswith(f"left out: {told} ({len(links)}; first ")
    with pytest.raises(UserError, match=r"is a link .*: mend it, or leave --strict out"):
        list(class_files(folder, DataNotes(strict=True)))
    corpus = find_labelled_text(folder)
    assert sum(map(len, corpus.splits.values())) == 8 and line in corpus.notes


def test_links_to_elsewhere_are_followed(tmp_path):
    store = classes(tmp_path / "store")
    (tmp_path / "data").mkdir()
    hidden = classes(tmp_path / "data" / ".store", "c")
    (tmp_path / "data" / "a").symlink_to(store / "a")
    for number in range(4):
        path = tmp_path / "data" / "b" / "deep" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(store / "b" / f"{number}.txt")
    (tmp_path / "data" / "c").symlink_to(hidden / "c")
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    for folder in (tmp_path / "data", tmp_path / "alias"):
        counts, notes = texts(folder)
        assert counts == {"a": 4, "b": 4, "c": 4} and not notes.lines


def test_a_text_has_one_class(tmp_path):
    store = write(tmp_path / "store" / "x.txt", "a text of both")
    folder = classes(tmp_path / "data")
    for name in "ab":
        (folder / name / "x.txt").symlink_to(store)
    problem = "is in two classes by links, 'a' and 'b': keep one of them"
    assert_refused(find_labelled_text, folder, problem)
    (folder / "b" / "x.txt").unlink()
    (folder / "a" / "y.txt").symlink_to(store)
    assert "links to what is read already (1;" in " ".join(find_labelled_text(folder).notes)


def test_links_that_lead_back_from_elsewhere_end(tmp_path):
    store = classes(tmp_path / "store", ["a"])
    folder = classes(tmp_path / "data", "b")
    (folder / "a").symlink_to(store / "a")
    (store / "a" / "back").symlink_to(folder)
    (store / "a" / "round").symlink_to(store)
    counts, notes = texts(folder)
    assert counts == {"a": 4, "b": 4} and f"{LOOP} (2; " in notes.lines[0]


def test_equal_files_and_hard_links_stay(tmp_path):
    folder = classes(tmp_path)
    os.link(folder / "a" / "0.txt", folder / "a" / "copy.txt")
    assert texts(folder)[0] == {"a": 5, "b": 4}


def test_links_between_splits_are_counted(tmp_path):
    for split in ("train", "test"):
        classes(tmp_path / split)
    (tmp_path / "dev").symlink_to("test")
    (tmp_path / "test" / "a" / "up").symlink_to("../..")
    corpus = find_labelled_text(tmp_path)
    assert {name: len(own) for name, own in corpus.splits.items()} == {
        "train": 8,
        "dev": 8,
        "test": 8,
    }
    told = "train has the same texts, which makes scores too good: "
    told += "8 of 8 of dev (8 distinct), 8 of 8 of test"
    assert any(note.startswith(told) for note in corpus.notes)


# --- Folders named train, dev and test ---


@pytest.mark.parametrize(
    "names", [("train", "plane"), ("test", "plane"), ("dev", "test", "car", "bike")]
)
def test_folders_of_texts_beside_others_are_classes(tmp_path, names):
    corpus = find_labelled_text(classes(tmp_path, names))
    assert set(corpus.classes) == {*names}
    splits = [name for name in ("train", "dev", "test") if name in names]
    assert (
        f"folders without sub-folders are classes, not splits: {', '.join(splits)}" in corpus.notes
    )


def test_classes_may_have_any_name_in_a_split(tmp_path):
    for name in ("train", "test"):
        classes(tmp_path / name, ("train", "test", "dev"))
    corpus = find_labelled_text(tmp_path)
    assert corpus.classes == ("dev", "test", "train") and len(corpus.splits["test"]) == 12


@pytest.mark.parametrize(
    ("folders", "problem"),
    [
        (
            ["train/a", "train/b", "plane"],
            "has folders for splits (train) and others (plane): move",
        ),
        (
            ["train/a", "train/b", "test/a", "unsup/x"],
            "splits (train, test) and others (unsup): move",
        ),
        (
            ["train"],
            "has folders for splits (train) without a folder for each class: if these are classes",
        ),
        (["train", "test"], "has folders for splits (train, test) without a folder for each class"),
        (["test/a", "test/b"], "has no file for the train split"),
    ],
)
def test_folders_that_may_be_splits_or_classes_are_refused(tmp_path, folders, problem):
    classes(tmp_path, folders)
    assert_refused(find_labelled_text, tmp_path, problem)
    names = {own.name for own in tmp_path.iterdir()}
    if len(names) > 1 and "train" in names:
        # What the message says helps.
        (tmp_path / "new").mkdir()
        for name in names:
            (tmp_path / name).rename(tmp_path / "new" / name)
        (tmp_path / "new").rename(tmp_path / "train")
        assert set(find_labelled_text(tmp_path).classes) == names


def test_splits_may_lie_beside_what_is_no_data(tmp_path):
    for name in ("train", "test"):
        classes(tmp_path / name)
        write(tmp_path / name / "urls.txt", "x")
    write(tmp_path / "runs" / "classify" / "x" / "config.json", "{}")
    write(tmp_path / "runs" / "classify" / "x" / "checkpoints" / "1" / "x", "")
    write(tmp_path / ".git" / "x", "")
    write(tmp_path / "README.md", "x")
    (tmp_path / "empty").mkdir()
    for name, target in (("all", "."), ("up", ".."), ("latest", "train")):
        (tmp_path / name).symlink_to(target)
    corpus = find_labelled_text(tmp_path)
    assert corpus.classes == ("a", "b") and len(corpus.splits["test"]) == 8
    assert not re.search("left out|are classes", " ".join(corpus.notes))
