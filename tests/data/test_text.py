"""Check folders of text: names, tokens, vocabulary, and each way in which a folder can be wrong."""

import collections
import dataclasses
import gzip
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import EOS, UNK, build_vocabulary, find_language_corpus, make_corpus, read_corpus
from dynskip_jax.data.text import read_lines, tokenize
from dynskip_jax.data.vocabulary import join_tokens
from dynskip_jax.errors import UserError

TEXTS = {"train": "the cat sat\nthe dog\n", "valid": "the cat\n", "test": "a cat\nsat\n"}

WORDS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=12).map(" ".join)


def write(folder, template="{}.txt", **texts):
    folder.mkdir(exist_ok=True)
    for split, text in (TEXTS | texts).items():
        path = folder / template.format(split)
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return folder


def error_of(folder):
    with pytest.raises(UserError) as caught:
        read_corpus(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_tokens_and_vocabulary_by_hand(tmp_path):
    corpus = read_corpus(write(tmp_path / "cats"))
    assert corpus.name == "cats"
    assert str(tmp_path / "cats") in corpus.source
    # <eos> and "the" occur twice. The other words occur once and become <unk>, as does "a", which is new.
    assert corpus.vocabulary.tokens == (UNK, EOS, "the")
    assert corpus.train.tolist() == [2, 0, 0, 1, 2, 0, 1]
    assert corpus.valid.tolist() == [2, 0, 1]
    assert corpus.test.tolist() == [0, 0, 1, 0, 1]
    assert corpus.sizes == {"train": 7, "valid": 3, "test": 5, "vocabulary": 3}
    assert {ids.dtype for ids in (corpus.train, corpus.valid, corpus.test)} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    "template", ["{}.txt", "ptb.{}.txt", "wiki.{}.tokens", "my-own_{}.txt", "{}.txt.gz", "wiki.{}.tokens.gz"]
)
def test_accepted_names_read_alike(tmp_path, template):
    plain = read_corpus(write(tmp_path / "plain"))
    assert read_corpus(write(tmp_path / "other", template)).fingerprint == plain.fingerprint


@pytest.mark.parametrize("alias", ["val", "dev", "validation", "development", "VAL"])
def test_other_words_for_valid(tmp_path, alias):
    folder = write(tmp_path / "corpus")
    (folder / "valid.txt").rename(folder / f"{alias}.txt")
    assert read_corpus(folder).valid.size == 3
    (folder / "valid.txt").write_text("the\n")
    assert "valid.txt" in error_of(folder) and f"{alias}.txt" in error_of(folder)


@pytest.mark.parametrize("alias", ["val", "dev"])
def test_other_words_for_valid_within_names(tmp_path, alias):
    folder = write(tmp_path / "corpus", "my_{}.txt")
    (folder / "my_valid.txt").rename(folder / f"my_{alias}.txt")
    assert read_corpus(folder).valid.size == 3


PARAGRAPHS = "the cat\nsat\n\nthe cat\n \t\n\n"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("extension", "blank_lines", "kept"),
    [("txt", None, 0), ("txt", True, 3), ("tokens", None, 3), ("tokens", False, 0)],
)
def test_blank_lines(tmp_path, extension, suffix, blank_lines, kept):
    # There are three lines with words, one blank line between them, and two blank lines at the end.
    folder = write(
        tmp_path / "tokens.train.folder", f"tokens.{{}}.{extension}{suffix}", train=PARAGRAPHS, test="sat"
    )
    corpus = read_corpus(folder, blank_lines=blank_lines)
    words = corpus.vocabulary.decode(corpus.train)
    assert [word for word in words if word != EOS] == ["the", "cat", "sat", "the", "cat"]
    assert words.count(EOS) == 3 + kept
    assert (words[:2] == ["the", "cat"]) and (words[5:7] == ([EOS, "the"] if kept else ["the", "cat"]))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("", ""),
        ("<eos>", ""),
        ("the cat", "the cat"),
        ("<eos> the cat <eos>", "the cat"),
        ("<eos> <eos> the cat <eos> sat <eos> <eos> <unk> <eos> <eos>", "the cat\nsat\n\n<unk>"),
        ("the <eos>x x<eos> cat", "the <eos>x x<eos> cat"),
    ],
)
def test_text_of_tokens(tokens, text):
    assert join_tokens(tokens.split()) == text


@settings(deadline=None, max_examples=30)
@given(st.lists(WORDS, max_size=5))
def test_text_of_tokens_undoes_tokenize(lines):
    assert join_tokens(tokenize(lines)) == "\n".join(lines)


def test_wikitext_has_its_published_counts():
    root = Path(os.environ.get("DYNSKIP_DATA_DIR") or Path(__file__).parents[3] / "shared" / "data")
    paths = {split: root / "wikitext2" / f"wiki.{split}.tokens.gz" for split in ("valid", "test")}
    if not all(path.is_file() for path in paths.values()):
        pytest.skip("needs wiki.valid.tokens.gz and wiki.test.tokens.gz in $DYNSKIP_DATA_DIR/wikitext2")
    sizes = {split: len(tokenize(read_lines(path))) for split, path in paths.items()}
    assert sizes == {"valid": 217_646, "test": 245_569}  # Merity et al. 2017


def test_text_details(tmp_path):
    # The text has a byte-order mark, Windows line ends, runs of spaces, no last line end, and a form feed, at
    # which str.splitlines would split.
    text = "\ufeffthe  cat\r\nx\u00b7y \x0c\r\n\r\nend".encode()
    corpus = read_corpus(write(tmp_path / "corpus", train=text, valid="the", test="cat"))
    assert corpus.vocabulary.decode(corpus.train) == ["the", "cat", EOS, "x\u00b7y", EOS, "end", EOS]


def test_unk_of_the_training_text_is_used():
    corpus = make_corpus("x", {"train": ["a <unk> <unk>"], "valid": ["b"], "test": ["a"]}, "here")
    assert corpus.vocabulary.tokens == (UNK, EOS, "a")
    assert corpus.valid.tolist() == [0, 1]
    assert corpus.min_count == 1
    assert corpus.about_unknown == "<unk> as in the text of train: 50 % of train, 50 % of valid, 0 % of test"


def splits(train, valid="the", test="the"):
    return {"train": [train], "valid": [valid], "test": [test]}


@pytest.mark.parametrize("min_count", [None, 1])
def test_no_unk_where_it_is_not_needed(min_count):
    corpus = make_corpus("x", splits("a b", "b", "a"), "here", min_count)
    assert UNK not in corpus.vocabulary.index and corpus.min_count == 1
    assert corpus.unknown == {"train": 0, "valid": 0, "test": 0}
    assert corpus.about_unknown == "train has every word of valid and test: no <unk>"


RARE = st.sampled_from([None, 1, 2, 3])


@settings(deadline=None, max_examples=60)
@given(st.tuples(WORDS, WORDS, WORDS), RARE)
def test_no_corpus_has_an_unk_that_is_not_trained(words, min_count):
    try:
        corpus = make_corpus("x", splits(*words), "here", min_count)
    except UserError as error:
        # This happens only if no word is rare enough and another split has a new word.
        assert "min_count" in str(error)
        counts = collections.Counter(words[0].split())
        assert min(counts.values()) >= (min_count or 2)
        assert not {*words[1].split(), *words[2].split()} <= counts.keys()
        return
    trained = set(corpus.train.tolist())
    assert trained == set(range(len(corpus.vocabulary)))
    for split, text in zip(("train", "valid", "test"), words, strict=True):
        # Every word is counted, as itself or as <unk>.
        expected = [word if word in corpus.vocabulary.index else UNK for word in [*text.split(), EOS]]
        assert corpus.vocabulary.decode(getattr(corpus, split)) == expected
        assert corpus.unknown[split] == pytest.approx(expected.count(UNK) / len(expected))


@settings(deadline=None, max_examples=30)
@given(WORDS, WORDS, WORDS, st.sampled_from([1, 2, 3]))
def test_the_vocabulary_is_made_from_train_alone(train, first, second, min_count):
    train += f" {UNK}"
    one, two = (make_corpus("x", splits(train, words), "here", min_count) for words in (first, second))
    assert one.vocabulary == two.vocabulary
    assert make_corpus("x", splits(train, first), "here").vocabulary == build_vocabulary(
        [*train.split(), EOS]
    )


def test_unknown_words_without_a_choice():
    corpus = make_corpus("x", splits("a a b c the the", "d a", "the d e b"), "here")
    assert corpus.min_count == 2
    assert corpus.vocabulary.tokens == (UNK, "a", "the", EOS)
    assert corpus.unknown == {"train": 2 / 7, "valid": 1 / 3, "test": 3 / 5}
    assert corpus.about_unknown == (
        "words seen once in train are <unk>: 29 % of train, 33 % of valid, 60 % of test"
    )
    more = make_corpus("x", splits("a a b c the the", "d a"), "here", min_count=3)
    assert more.vocabulary.tokens == (UNK, EOS)
    assert more.about_unknown.startswith("words seen fewer than 3 times in train are <unk>: 86 % of train")


@pytest.mark.parametrize(
    ("train", "min_count", "enough"), [("a b the", 1, 2), ("a a the the the", None, 3), ("the " * 9, 2, 10)]
)
def test_unknown_words_that_nothing_would_train(train, min_count, enough):
    lines = splits(train, "the", "the zebra")
    with pytest.raises(UserError, match=rf"test split .*'zebra'.* use min_count {enough},") as caught:
        make_corpus("x", lines, "here", min_count)
    assert "\n" not in str(caught.value)
    assert make_corpus("x", lines, "here", enough).unknown["train"] > 0


def test_min_count_below_one_is_refused():
    with pytest.raises(UserError, match=r"min_count must be at least 1.* not 0"):
        make_corpus("x", splits("the"), "here", 0)


def test_fingerprint_depends_on_content_alone(tmp_path):
    corpus = read_corpus(write(tmp_path / "one"))
    renamed = dataclasses.replace(corpus, name="another", source="elsewhere")
    assert renamed.fingerprint == corpus.fingerprint
    assert len(corpus.fingerprint) == 64
    other_words = read_corpus(write(tmp_path / "two", train="the sat sat\nthe dog\n"))
    assert other_words.fingerprint != corpus.fingerprint
    moved = dataclasses.replace(
        corpus, train=corpus.train[:-1], valid=np.concatenate([corpus.train[-1:], corpus.valid])
    )
    assert moved.fingerprint != corpus.fingerprint


def test_missing_split_is_named_with_the_accepted_names(tmp_path):
    folder = write(tmp_path / "corpus")
    (folder / "valid.txt").unlink()
    message = error_of(folder)
    assert "valid split" in message and str(folder) in message and "valid.txt" in message
    assert "validation or val or dev or development or testa for valid" in message
    (folder / "valid.txt").write_text("the\n")
    (folder / "test.txt").unlink()
    assert "test split" in error_of(folder) and "testb for test" in error_of(folder)


def test_two_candidates_are_named(tmp_path):
    folder = write(tmp_path / "corpus")
    (folder / "other.train.txt").write_text("x\n")
    message = error_of(folder)
    assert "other.train.txt" in message and "train.txt" in message


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_empty_file_is_named(tmp_path, text):
    message = error_of(write(tmp_path / "corpus", test=text))
    assert "test.txt is empty" in message


@pytest.mark.parametrize("template", ["{}.txt", "{}.txt.gz"])
def test_bytes_that_are_not_utf8_are_located(tmp_path, template):
    message = error_of(write(tmp_path / "corpus", template, valid=b"the caf\xe9\n"))
    assert template.format("valid") in message and "byte offset 7" in message


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"plain text"])
def test_damaged_gzip_is_named(tmp_path, damage):
    folder = write(tmp_path / "corpus", "{}.txt.gz", train="the cat sat on the mat\n" * 50)
    path = folder / "train.txt.gz"
    path.write_bytes(damage(path.read_bytes()))
    message = error_of(folder)
    assert "train.txt.gz" in message and "damaged gzip" in message


def test_not_a_folder(tmp_path):
    assert "not a readable folder" in error_of(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    assert "has 1 lines of text, too few" in error_of(tmp_path / "file")


def test_texts_are_streamed(tmp_path):
    """A token takes only the few bytes of its id, not a separate string."""
    count = 200_000
    write(tmp_path, train="the cat sat on a mat again\n" * (count // 8), valid="the", test="a")
    tracemalloc.start()
    corpus = read_corpus(tmp_path, min_count=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert corpus.train.size == count and corpus.train.dtype == np.int32
    # A file is read 1 MiB at a time, and each part exists as bytes, as text and as lines.
    assert peak < 12 * count + 5 * 2**20


def test_a_generator_of_lines_is_read_once():
    lines = {split: iter(["the cat", "the"]) for split in ("train", "valid", "test")}
    assert make_corpus("x", lines, "here").sizes == {"train": 5, "valid": 5, "test": 5, "vocabulary": 3}


@pytest.mark.parametrize("name", ["novel.txt", "novel.txt.gz"])
def test_one_file_is_cut_into_three(tmp_path, name):
    text = "".join(f"the {word} <unk>\n" for word in ("cat", "dog") * 10).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    corpus = read_corpus(tmp_path / name)
    assert corpus.name == "novel" and "80 %, 10 % and 10 %" in corpus.source
    assert corpus.sizes == {"train": 64, "valid": 8, "test": 8, "vocabulary": 5}
    assert corpus.vocabulary.decode(corpus.test) == [
        "the",
        "cat",
        "<unk>",
        "<eos>",
        "the",
        "dog",
        "<unk>",
        "<eos>",
    ]
    assert find_language_corpus(tmp_path / name).fingerprint == corpus.fingerprint


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 1, 50), (50, 1, 1), (1, 50, 1), (3, 1, 1, 1)])
def test_each_part_of_one_file_has_a_line(tmp_path, sizes):
    (tmp_path / "x.txt").write_text("".join("a " * size + "\n" for size in sizes))
    corpus = read_corpus(tmp_path / "x.txt")
    assert min(corpus.train.size, corpus.valid.size, corpus.test.size) > 0
    assert corpus.train.size + corpus.valid.size + corpus.test.size == sum(sizes) + len(sizes)
    (tmp_path / "x.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match="has 2 lines of text, too few"):
        read_corpus(tmp_path / "x.txt")


def test_many_unknown_words_are_warned_of():
    few = make_corpus("x", splits("a b c d e f g <unk> h i j", "a b c d e f g h i j k", "a"), "here")
    assert few.unknown_warning == ""
    many = make_corpus("x", splits("a b c d e f g <unk> h i j", "x y z a b", "a"), "here")
    assert many.unknown_warning.startswith("50 % of valid is <unk>, which is easy to predict")


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_line_ends_of_all_systems(tmp_path, end):
    other = {split: text.replace("\n", end) for split, text in TEXTS.items()}
    assert (
        read_corpus(write(tmp_path / "a", **other)).fingerprint
        == read_corpus(write(tmp_path / "b")).fingerprint
    )
