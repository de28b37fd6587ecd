"""Check that each reader of users' data reads mutated files or refuses them in one line, and never hangs."""

import gzip
import io
import json
import os
import random
import signal
import tarfile
import zipfile
from pathlib import Path

import pytest

from dynskip_jax.data import (
    find_entity_corpus,
    find_labelled_text,
    find_part_of_speech_corpus,
    lines_to_tag,
    read_columns,
    read_conll2000,
    read_conll2003,
    read_conllu,
    read_corpus,
    read_labelled_file,
    read_parses,
    read_ptb,
    read_ud,
    read_word_tag,
    read_word_vectors,
    read_wsj_sample,
    tagged_lines,
)
from dynskip_jax.data.imdb import imdb_splits, read_imdb, unpack_imdb
from dynskip_jax.data.messages import printable
from dynskip_jax.data.ptb import extract_ptb
from dynskip_jax.data.sentences import labelled_corpus, pair_corpus, review_words
from dynskip_jax.data.sick import find_sick
from dynskip_jax.data.sst import read_sst, sst_splits
from dynskip_jax.data.text_files import iter_lines
from dynskip_jax.errors import UserError

SECONDS = 20
BY_DEFAULT, IN_ALL = 10, 2_000

COLUMNS = (
    "-DOCSTART- -X- O O\n\n# id 7\tdomain=en\nU.N. NNP I-NP I-ORG\nsays VBZ I-VP O\n# # I-NP O\n\n"
    "Ann NNP I-NP I-PER\nLee NNP I-NP B-PER\n"
)
CONLLU = (
    "# text = Don't\n1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t_\n"
    "2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_\n2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_\n\n"
    "1\t26 000\t26000\tNUM\tCD\t_\t0\troot\t_\t_\n"
)
PAIRS = "The/at 1\\/2/cd story/nn ./.\n\nIt/pp is/bez\n"
PARSES = "( (S (NP (DT The) (NN cat)) (-NONE- *T*) (-LRB- () (-RRB- )) (. .)))\n( (NN yes) )\n"
TREES = "(3 (2 It) (4 (2 shines) (2 -LRB-)))\n(1 (2 Not) (1 (2 ()(2 good)))\n"
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\tA cat sits.\tA dog runs.\t3.5\n"
VECTORS = "3 3\nthe 0.5 -1 2\n10 000 1 2 3\ncat 1e-3 0 1\n"
REVIEWS = '{"text": "so good \\u00e9", "label": 1}\n{"text": "so bad", "label": 0}\n' * 7
CSV = 'text,label\n"so ""good"", yes",joy\nbad,grief\n' * 12
TSV = 'text\tlabel\nso "good"\tjoy\nbad\tgrief\n'
TEXT = "the cat sat\non <unk> mat\n\nthe dog\n" * 3


IMDB_FILES = [
    f"{split}/{kind}/{number}_9.txt"
    for split in ("train", "test")
    for kind in ("neg", "pos")
    for number in range(4)
]


def zipped(texts):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def tarred(texts):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def splits(ending, text, names=("train", "dev", "test")):
    return {f"{name}{ending}": text for name in names}


def tag_again(path, format):
    lines = list(iter_lines(path))
    blocks = list(lines_to_tag(lines, format, where=str(path)))
    tagged = [tagged_lines(block, ["T"] * len(block.words), format) for block in blocks]
    assert sum(map(len, tagged)) == len(lines)


def all_of(folder):
    corpus = find_labelled_text(folder, split_seed=0)
    return labelled_corpus("x", corpus.labelled(review_words), "here").fingerprint, corpus.about


def reviews(folder):
    return labelled_corpus("x", imdb_splits(read_imdb(folder)), "here").fingerprint


def unpacked(folder):
    (folder / "out").mkdir(exist_ok=True)
    return unpack_imdb(folder / "a.tgz", folder / "out"), reviews(folder / "out")


# For each reader: the files of a folder, and a function that reads them.
READERS = {
    "columns": ({"x.txt": COLUMNS}, lambda folder: read_columns(folder / "x.txt")),
    "columns.gz": ({"x.gz": COLUMNS}, lambda folder: read_columns(folder / "x.gz", beside=(1,))),
    "columns to tag": ({"x.txt": COLUMNS}, lambda folder: tag_again(folder / "x.txt", "columns")),
    "conllu": ({"x.conllu": CONLLU}, lambda folder: read_conllu(folder / "x.conllu", tag="xpos")),
    "conllu to tag": ({"x.conllu": CONLLU}, lambda folder: tag_again(folder / "x.conllu", "conllu")),
    "word/tag": ({"x.txt": PAIRS}, lambda folder: read_word_tag(folder / "x.txt")),
    "parses": ({"x.mrg": PARSES}, lambda folder: read_parses(folder / "x.mrg")),
    "conll2003": (
        dict.fromkeys(("eng.train", "eng.testa", "eng.testb"), COLUMNS),
        lambda folder: read_conll2003(folder),
    ),
    "conll2000.zip": (
        {"c.zip": zipped({f"conll2000/{name}.txt": COLUMNS for name in ("train", "test")})},
        lambda folder: read_conll2000(folder / "c.zip"),
    ),
    "treebank.zip": ({"t.zip": zipped({"a.mrg": PARSES})}, lambda folder: read_wsj_sample(folder / "t.zip")),
    "ud": (splits(".conllu", CONLLU, ("a-ud-train", "a-ud-dev", "a-ud-test")), read_ud),
    "entities": (
        splits(".conll", COLUMNS),
        lambda folder: find_entity_corpus("columns", folder).fingerprint,
    ),
    "parts of speech": (
        splits(".conllu", CONLLU),
        lambda folder: find_part_of_speech_corpus("conllu", folder).fingerprint,
    ),
    "sst": (
        splits(".txt", TREES),
        lambda folder: labelled_corpus("x", sst_splits(read_sst(folder), phrases=True), "here").fingerprint,
    ),
    "sick": (
        {f"SICK_{name}.txt": SICK for name in ("train", "trial", "test_annotated")},
        lambda folder: pair_corpus("x", find_sick(folder)[0], "here").fingerprint,
    ),
    "imdb": (splits(".jsonl", REVIEWS, ("train", "test")), reviews),
    "imdb folder": (dict.fromkeys(IMDB_FILES, "so bad<br />"), reviews),
    "imdb archive": ({"a.tgz": tarred({f"aclImdb/{name}": "so bad" for name in IMDB_FILES})}, unpacked),
    "ptb": (splits(".txt", TEXT, ("ptb.train", "ptb.valid", "ptb.test")), read_ptb),
    "ptb archive": (
        {"a.tgz": tarred({f"simple-examples/data/ptb.{s}.txt": TEXT for s in ("train", "valid", "test")})},
        lambda folder: extract_ptb(folder / "a.tgz", folder),
    ),
    "text": (splits(".txt", TEXT), lambda folder: read_corpus(folder).fingerprint),
    "text.gz": (splits(".tokens.gz", TEXT), lambda folder: read_corpus(folder).fingerprint),
    "one text": ({"novel.txt": TEXT}, lambda folder: read_corpus(folder / "novel.txt").fingerprint),
    "vectors": (
        {"v.txt": VECTORS},
        lambda folder: read_word_vectors(folder / "v.txt", {"the", "cat", "10 000"}, 3),
    ),
    "vectors.gz": ({"v.gz": VECTORS[4:]}, lambda folder: read_word_vectors(folder / "v.gz", {"the"}, 3)),
    "tsv": (
        {"x.tsv": 'text\tlabel\nso "good"\tjoy\nbad\tgrief\n'},
        lambda folder: read_labelled_file(folder / "x.tsv"),
    ),
    "csv": ({"x.csv": CSV}, all_of),
    "json lines": (splits(".jsonl", REVIEWS), all_of),
    "folders of classes": (
        {f"{label}/{i}.txt": f"so {label} {i}" for label in ("good", "bad") for i in range(10)},
        all_of,
    ),
}

INSERTED = [
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t", b"\t\t", b" ", b"(", b")", b"()"),
    *(b"#", b"# a = b\n", b"\x1b[31m", b"\x9b", b'"', b"\\ud800", b"\\", b"/", b",", b"-", b"_"),
    *(b"1e999", b"nan", b"9" * 5000, b"2-1", b"1.1", b"B-", b"I-X", b"O", b"-DOCSTART-"),
    *(b"x" * 200_000, b"[" * 200_000, b'{"a":' * 50_000, b"(" * 50_000),
    *(b"<unk>", b"<eos>", b"PK\x03\x04", b"\x1f\x8b"),
    *(text.encode() for text in ("\u202e", "\u2028", "\u00a0", "e\u0301👩\u200d👧")),
]


def mutated(data, draw):
    """Return the data with one to four random changes."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        start = draw.randint(0, len(data))
        end = min(len(data), start + draw.choice((1, 1, 2, 5, 20)))
        kind = draw.randrange(8)
        if kind == 0 and start < len(data):
            data[start] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[start:end] * draw.choice((1, 2, 50))
        elif kind == 3:
            data[start:end] = draw.randbytes(end - start)
        elif kind == 4:
            del data[start:]
        elif kind == 5:
            lines = bytes(data).split(b"\n")
            draw.shuffle(lines)
            data = bytearray(b"\n".join(lines))
        elif kind == 6:
            data = bytearray(bytes(data).replace(b"\n", draw.choice((b"\r", b"\r\n", b"\n\r", b" "))))
        else:
            data[start:start] = draw.choice(INSERTED)
    return bytes(data)


def written(folder, files, draw):
    """Write the files of a reader, one of them mutated.

    A gzip file may be mutated before and after compression.
    """
    victim = draw.choice(sorted(files))
    for name, text in files.items():
        data = text.encode() if isinstance(text, str) else text
        is_packed = name.endswith("gz") and not name.endswith("tgz")
        before = name == victim and not (is_packed and draw.random() < 0.3)
        if before:
            data = mutated(data, draw)
        if is_packed:
            data = gzip.compress(data, mtime=0)
            if name == victim and (not before or draw.random() < 0.5):
                data = mutated(data, draw)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def hung(*_):
    raise TimeoutError(f"a reader took more than {SECONDS} s")


def refused(read, folder):
    """Read a folder, and return the message with which it is refused; return None if it is accepted."""
    signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    try:
        read(folder)
    except UserError as error:
        message = str(error)
        assert len(message) < 300 and printable(message) == message, json.dumps(message[:500])
        return message
    finally:
        signal.alarm(0)
    return None


def check(name, tmp_path, count):
    files, read = READERS[name]
    for seed in range(count):
        folder = tmp_path / str(seed)
        folder.mkdir()
        written(folder, files, random.Random(f"{name} {seed}"))
        try:
            refused(read, folder)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}") from error


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_read_or_refused(name, tmp_path):
    check(name, tmp_path, BY_DEFAULT)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_mutated_files_are_read_or_refused(name, tmp_path):
    check(name, tmp_path, -(-IN_ALL // len(READERS)))


@pytest.mark.parametrize("name", READERS)
def test_unharmed_files_are_read(name, tmp_path):
    files, read = READERS[name]
    draw = random.Random(0)
    written(tmp_path, {"unused.txt": "", **files}, _Harmless(draw))
    (tmp_path / "unused.txt").unlink()
    message = refused(read, tmp_path)
    assert message is None or (name == "ptb" and "looks truncated" in message)


class _Harmless:
    """Stand-in for `random.Random` that chooses the unused file, so that no file is damaged."""

    def __init__(self, draw):
        self.draw = draw

    def __getattr__(self, name):
        return getattr(self.draw, name)

    def choice(self, values):
        return "unused.txt" if "unused.txt" in values else self.draw.choice(values)


@pytest.mark.parametrize("name", READERS)
def test_pipes_are_refused(name, tmp_path):
    """Reading a pipe without a writer would never end."""
    files, read = READERS[name]
    written(tmp_path, files, random.Random(0))
    for path in list(tmp_path.rglob("*")):
        if path.is_file():
            path.unlink()
            os.mkfifo(path)
    assert refused(read, tmp_path) is not None


def test_the_working_folder_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    check("csv", tmp_path / "data", 2)
    assert sorted(Path().iterdir()) == [Path("data")]
