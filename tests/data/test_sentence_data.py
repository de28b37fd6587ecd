"""Check labelled texts and pairs: words, vocabularies, splits, and the errors of malformed files."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest

from dynskip_jax.data import imdb, sick, sst
from dynskip_jax.data.embedded import TOKEN
from dynskip_jax.data.sentences import (
    Labelled,
    held_out,
    labelled_corpus,
    pair_corpus,
    review_words,
    treebank_words,
    word_vocabulary,
)
from dynskip_jax.errors import UserError


def test_words_of_reviews():
    text = "It's <br /><br/>GREAT -- don't miss... WOW!!!!! (9/10) Amélie’s"
    expected = "it's great -- don't miss ... wow !!! !! ( 9 / 10 ) amélie’s"
    assert review_words(text) == expected.split()
    assert review_words(" <br /> \n") == []


def test_words_of_treebanks():
    assert treebank_words("It isn't John's (film): well-made, $3.50!") == (
        ["it", "is", "n't", "john", "'s", "(", "film", ")", ":", "well-made", ",", "$", "3.50", "!"]
    )
    for tokens in ("a film that 's `` both '' funny , n't it ?", "-lrb- so-so -rrb- ... --"):
        assert treebank_words(tokens) == tokens.split()


SCRIPTS = [
    "आधुनिक मानक हिन्दी",
    "తెలుగు భాష",
    "বাংলা ভাষা",
    "اَلْعَرَبِيَّةُ لُغَةٌ",
    "עִבְרִית שָׂפָה",
    "cafe\u0301 nai\u0308ve",
    "می\u200cخواهم",
    "ภาษาไทย",
    "Ελληνικά 10² ½",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_words_keep_the_marks_that_combine_with_their_letters(text):
    assert review_words(text) == treebank_words(text) == text.lower().split()
    assert TOKEN.findall(text.partition("10")[0]) == text.partition("10")[0].split()


def test_joined_emoji_are_one_word():
    family, thumb, flag = "👨\u200d👩\u200d👧", "👍🏽", "🇨🇭"
    for words in (review_words, treebank_words):
        assert words(f"so{family}good {thumb}{flag}!") == ["so", family, "good", thumb, flag, "!"]
        assert words(f"{thumb}{thumb} a\x1cb \x1d") == [thumb * 2, "a", "b"]


def test_the_most_frequent_words_are_kept():
    counts = {"b": 3, "a": 3, "rare": 1, "c": 2, "most": 9}
    assert word_vocabulary(counts).tokens == ("<unk>", "most", "a", "b", "c", "rare")
    assert word_vocabulary(counts, min_count=2).tokens == ("<unk>", "most", "a", "b", "c")
    assert word_vocabulary(counts, max_words=2).tokens == ("<unk>", "most", "a")


TEXTS = {
    "train": [Labelled(["a", "b", "a", "c"], 1), Labelled(["b"], 0)],
    "dev": [Labelled(["z", "a"], 0)],
    "test": [Labelled(["a", "y", "x"], 1)],
}


def test_texts_are_numbered_by_train_alone():
    corpus = labelled_corpus("letters", TEXTS, "here", max_length=3)
    assert corpus.vocabulary.tokens == ("<unk>", "a", "b")  # the fourth word of the first text is cropped
    train, test = corpus.splits["train"], corpus.splits["test"]
    np.testing.assert_array_equal(train.inputs, [[1, 2, 1], [2, 0, 0]])
    np.testing.assert_array_equal(train.seq_lengths, [3, 1])
    np.testing.assert_array_equal(train.targets, [1, 0])
    np.testing.assert_array_equal(test.inputs, [[1, 0, 0]])
    assert corpus.unknown == {"train": 0, "dev": 0.5, "test": pytest.approx(2 / 3)}
    assert corpus.cropped == {"train": 1, "dev": 0, "test": 0}
    assert corpus.sizes == {"train": 2, "dev": 1, "test": 1, "vocabulary": 3}
    other = labelled_corpus("letters", TEXTS, "there", max_length=4)
    assert other.fingerprint != corpus.fingerprint
    assert corpus.fingerprint == labelled_corpus("x", TEXTS, "there", max_length=3).fingerprint


def test_small_data_has_few_lengths():
    """Train has a length per 20 batches. Other splits reuse these lengths, plus one for longer texts."""
    texts = {
        split: [Labelled(["a"] * n, 0) for n in range(1, longest)]
        for split, longest in (("train", 101), ("dev", 130), ("test", 11))
    }

    def lengths(batch_size, buckets=None):
        corpus = labelled_corpus("x", texts, "here", buckets=buckets, batch_size=batch_size)
        return [corpus.splits[split].buckets for split in texts]

    assert lengths(2) == [(56, 104), (56, 104, 136), (56, 104)]
    assert lengths(50) == [(104,), (104, 136), (104,)]
    assert [len(own) for own in lengths(1, 8)] == [8, 8, 2] and len(lengths(0)[0]) == 5


def test_words_of_dev_and_test_may_be_known_and_are_rare():
    asked = []

    def known(train, others):
        asked.append((set(train), set(others)))
        return {"y", "a"}

    corpus = labelled_corpus("letters", TEXTS, "here", max_length=3, known=known)
    assert asked == [({"a", "b"}, {"z", "a", "y", "x"})]
    assert corpus.vocabulary.tokens == ("<unk>", "a", "b", "y")
    assert corpus.num_frequent == 3  # a and b occur twice in train


def test_a_frequent_word_that_only_vectors_keep_is_no_reason_to_take_others_for_frequent():
    texts = {"train": [Labelled(list("aaabbc"), 0)], "dev": [Labelled(list("ab"), 0)]}
    corpus = labelled_corpus("x", texts, "here", max_words=1, known=lambda train, others: {"b", "_"})
    assert corpus.vocabulary.tokens == ("<unk>", "a", "_", "b")
    assert corpus.num_frequent == 2  # b is frequent too, but follows a rare word


def test_pairs_stand_in_one_row():
    pairs = [sick.Pair(["a", "b"], ["a"], 3.5), sick.Pair(["c"], ["a", "b", "c"], 1.0)]
    corpus = pair_corpus("pairs", {"train": pairs, "test": pairs[:1]}, "here")
    train = corpus.splits["train"]
    np.testing.assert_array_equal(train.inputs["tokens"], [[1, 2, 1, 0], [3, 1, 2, 3]])
    np.testing.assert_array_equal(train.inputs["sentences"], [[0, 0, 1, 0], [0, 1, 1, 1]])
    np.testing.assert_array_equal(train.seq_lengths, [3, 4])
    np.testing.assert_array_equal(train.targets, np.float32([3.5, 1.0]))


def test_what_is_held_out_is_drawn_with_its_seed():
    rest, held = held_out(40, 0.15, 0)
    assert len(held) == 6 and sorted([*rest, *held]) == list(range(40))
    assert (np.diff(rest) > 0).all()
    np.testing.assert_array_equal(held, held_out(40, 0.15, 0)[1])
    assert held.tolist() != held_out(40, 0.15, 1)[1].tolist()


# --- IMDB ---

REVIEWS = [("Bad.", 0), ("Worse<br />", 0), ("Fine", 1), ("Great film", 1)]


def json_lines(reviews):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in reviews)


@pytest.fixture
def as_json(tmp_path):
    folder = tmp_path / "json"
    folder.mkdir()
    for split in ("train", "test"):
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write(json_lines(REVIEWS))
    return folder


@pytest.fixture
def as_archive(tmp_path):
    """Write reviews in the upstream layout and return their folder; number 10 comes after number 2."""
    top = tmp_path / "archive" / "aclImdb"
    files = {"neg/2_4.txt": "Bad.", "neg/10_1.txt": "Worse<br />"}
    files |= {"pos/0_7.txt": "Fine", "pos/1_9.txt": "Great film"}
    for split in ("train", "test"):
        for name, text in files.items():
            path = top / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (top / "train" / "urls_pos.txt").write_text("not a review")
    return top.parent


def test_both_layouts_of_imdb_hold_the_same(as_json, as_archive, tmp_path):
    expected = {split: [imdb.Review(*review) for review in REVIEWS] for split in ("train", "test")}
    assert imdb.read_imdb(as_json) == expected
    assert imdb.read_imdb(as_archive) == imdb.read_imdb(as_archive / "aclImdb") == expected
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as tar:
        tar.add(as_archive / "aclImdb", "aclImdb")
        outside = tarfile.TarInfo("aclImdb/train/pos/../../../9_9.txt")
        tar.addfile(outside, io.BytesIO())
    assert imdb.read_imdb(imdb.unpack_imdb(tmp_path / "all.tgz", tmp_path / "unpacked")) == expected
    assert not (tmp_path / "9_9.txt").exists()


def test_imdb_is_kept_by_tfds(as_json, tmp_path, monkeypatch, nothing_temporary_left):
    monkeypatch.setattr(imdb, "is_reachable", lambda url: False)
    expected = imdb.read_imdb(as_json)
    imdb.prepare_imdb(tmp_path / "tfds", as_json)
    assert imdb.load_prepared_imdb(tmp_path / "tfds") == expected
    found, source = imdb.find_imdb(None, environ={}, tfds_dir=tmp_path / "tfds")
    assert found == expected and "TFDS cache" in source
    with pytest.raises(UserError, match="--data DIR"):
        imdb.find_imdb(None, environ={}, tfds_dir=tmp_path / "nothing")


def test_imdb_holds_out_a_part_of_train():
    reviews = {split: [imdb.Review(f"{split} {i}", i % 2) for i in range(20)] for split in ("train", "test")}
    parts = {split: list(texts) for split, texts in imdb.imdb_splits(reviews, dev_seed=3).items()}
    assert [len(part) for part in parts.values()] == [17, 3, 20]
    words = {text.words[1]: text.label for text in (*parts["train"], *parts["dev"])}
    assert words == {str(i): i % 2 for i in range(20)}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ('{"text": "a"}', "text and label"),
        ('{"text": "a", "label": 2}', "label 2 does not exist"),
        ('{"text": "<br />", "label": 1}', "no words"),
    ],
)
def test_a_bad_line_of_imdb_is_named(line, words, tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json_lines(REVIEWS[:1]) + line + "\n")
    with pytest.raises(UserError, match=rf"train\.jsonl, line 2: .*{words}"):
        imdb.read_imdb(tmp_path)


def test_imdb_that_is_not_there(as_archive, tmp_path):
    with pytest.raises(UserError, match="not a readable folder"):
        imdb.read_imdb(tmp_path / "nowhere")
    (tmp_path / "train.jsonl").write_text(json_lines(REVIEWS))
    with pytest.raises(UserError, match=r"no test\.jsonl"):
        imdb.read_imdb(tmp_path)
    (as_archive / "aclImdb" / "test" / "pos" / "0_7.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"0_7\.txt is not UTF-8"):
        imdb.read_imdb(as_archive)


# --- The treebank ---


def test_trees_have_all_their_nodes(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("(3 (2 It) (4 (4 Shines) (2 -LRB-)))\n\n(0 no\\/yes)\n")
    first, second = sst.read_trees(path)
    assert first == [
        Labelled(["it", "shines", "("], 3),
        Labelled(["it"], 2),
        Labelled(["shines", "("], 4),
        Labelled(["shines"], 4),
        Labelled(["("], 2),
    ]
    assert second == [Labelled(["no/yes"], 0)]
    trees = {"train": [first, second], "dev": [first], "test": [second]}
    assert [len(part) for part in sst.sst_splits(trees, phrases=True).values()] == [6, 1, 1]
    assert [len(part) for part in sst.sst_splits(trees, phrases=False).values()] == [2, 1, 1]


def test_brackets_that_are_words(tmp_path):
    (tmp_path / "train.txt").write_text("(3 (2 () (3 (2 -LRB-) (3 (2 )) (2 -RRB-))))\n(2 8\u00a01\\/2)\n")
    trees = sst.read_trees(tmp_path / "train.txt")
    assert [tree[0].words for tree in trees] == [["(", "(", ")", ")"], ["8", "1/2"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("(3 (2 It)", "not closed"),
        ("(7 It)", "'7' is no label"),
        ("(3 It))", "closes that none has opened"),
        ("(3 It) is", "unexpected 'is': every word stands in brackets"),
        ("(3 (2 very good) (2 .))", "unexpected 'very'"),
        ("(3 It) (2 is)", "second tree"),
        ("(3 (2 ) It)", "no words"),
    ],
)
def test_a_bad_tree_is_named(line, words, tmp_path):
    (tmp_path / "train.txt").write_text(f"(2 Fine)\n{line}\n")
    with pytest.raises(UserError, match=rf"train\.txt, line 2: .*{words}"):
        sst.read_trees(tmp_path / "train.txt")


# --- SICK ---

HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


def test_pairs_are_read_with_line_ends_of_any_system(tmp_path):
    path = tmp_path / "SICK_train.txt"
    path.write_bytes(f"{HEADER}\r\n1\tA dog isn't there\tA cat\t3.6\tNEUTRAL\r\n".encode())
    assert sick.read_pairs(path) == [sick.Pair(["a", "dog", "is", "n't", "there"], ["a", "cat"], 3.6)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1\tA dog\tA cat\t3.6", "4 columns"),
        ("1\tA dog\tA cat\tmuch\tNEUTRAL", "'much' is no number"),
        ("1\tA dog\tA cat\t5.5\tNEUTRAL", "between 1 and 5"),
        ("1\tA dog\t \t5\tNEUTRAL", "no words"),
    ],
)
def test_a_bad_pair_is_named(line, words, tmp_path):
    path = tmp_path / "SICK_train.txt"
    path.write_text(f"{HEADER}\n{line}\n")
    with pytest.raises(UserError, match=rf"SICK_train\.txt, line 2: .*{words}"):
        sick.read_pairs(path)
    path.write_text("one\ttwo\n")
    with pytest.raises(UserError, match="line 1: the first line names no column pair_ID"):
        sick.read_pairs(path)


def test_corpora_are_looked_for_where_the_user_keeps_them(tmp_path):
    for find, name in ((sst.find_sst, "sst"), (sick.find_sick, "sick")):
        with pytest.raises(UserError, match="--data DIR"):
            find(None, environ={})
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match="has no "):
            find(None, environ={"DYNSKIP_DATA_DIR": str(tmp_path)})


def test_blank_lines_of_imdb_are_counted_and_left_out(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n\n" + json_lines(REVIEWS[:1]))
    assert len(imdb.read_imdb(tmp_path)["train"]) == 1
    (tmp_path / "train.jsonl").write_text("\n\n" + json_lines(REVIEWS[:1]) + "{\n")
    with pytest.raises(UserError, match=r"train\.jsonl, line 4: "):
        imdb.read_imdb(tmp_path)


def test_splits_without_an_example(tmp_path):
    path = tmp_path / "SICK_trial.txt"
    path.write_text(f"{HEADER}\n\n")
    with pytest.raises(UserError, match=r"SICK_trial\.txt holds no pair"):
        sick.read_pairs(path)
    reviews = {"train": [imdb.Review(*own) for own in REVIEWS[:3]], "test": []}
    with pytest.raises(UserError, match="train has 3 reviews, too few"):
        imdb.imdb_splits(reviews)
    with pytest.raises(UserError, match="no example to read"):
        labelled_corpus("nothing", {"train": []}, "here")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "a", "label": ' + "[" * 200_000, "nested too deeply"),
        ('{"text": "\\ud800", "label": 1}', "half of a character"),
        ('{"text": "a", "label": "' + "x" * 5_000_000 + '"}', "the label 'xxx"),
        ('{"text": "a", "label": [[[["\\u001b"]]]]}', "the label"),
        ('{"text": "a", "label": 1.0}', "the label 1.0 does not exist"),
        ('{"text": {}, "label": 1}', "the text has no words"),
    ],
)
def test_reviews_that_are_not_as_they_should_be_are_named(tmp_path, line, problem):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(f"{line}\n")
    with pytest.raises(UserError, match="line 1: ") as caught:
        imdb.read_imdb(tmp_path)
    message = str(caught.value)
    assert problem in message and len(message) < 300 and message.isprintable()
