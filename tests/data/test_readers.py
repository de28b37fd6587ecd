"""Check that each reader reads mutated files or refuses them in one line, in little memory."""

import gzip
import io
import os
import shutil
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written import CONLL2003, CONLLU, write

from dynskip_jax.data import corpora, find_labelled_text, find_tagged_corpus, sentence_corpora
from dynskip_jax.data.files import iter_lines
from dynskip_jax.data.language import read_corpus
from dynskip_jax.data.sentences import review_words, sentence_corpus
from dynskip_jax.data.tagged import with_entities
from dynskip_jax.data.tagged_files import lines_to_tag, tagged_lines
from dynskip_jax.data.word_vectors import read_word_vectors
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import printable

MEMORY = 64 << 20
COLUMNS = f"# id 7\tdomain=en\n# # I-NP O\n\n{CONLL2003}"
TREES = "(3 (2 It) (4 (2 shines) (2 -LRB-)))\n(1 (2 Not) (1 (2 ()(2 good)))\n"
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\tA cat sits.\tA dog runs.\t3.5\n"
VECTORS = "3 3\nthe 0.5 -1 2\n10 000 1 2 3\ncat 1e-3 0 1\n"
REVIEWS = '{"text": "so good \\u00e9", "label": 1}\n{"text": "so bad", "label": 0}\n' * 7
CSV = 'text,label\n"so ""good"", yes",joy\nbad,grief\n' * 12
TEXT = "the cat sat\non <unk> mat\n\nthe dog\n" * 3
IMDB = [f"{s}/{k}/{i}_9.txt" for s in ("train", "test") for k in ("neg", "pos") for i in range(4)]
# Pieces that may mean something, or take long, to one of the readers.
INSERTED = [
    b"\x00",
    b"\r",
    b"\t\t",
    b" ",
    b"(",
    b"()",
    b"#",
    b"\\",
    b"\x1b[31m",
    b"\x9b",
    b'"',
    b",",
    b"_",
]
INSERTED += [b"1e999", b"nan"]
INSERTED += [b"\xff", b"\xef\xbb\xbf", b"\n\n", b"\\ud800", b"2-1", b"B-", b"I-X", b"-DOCSTART-"]
INSERTED += [b"9" * 5000, b"x" * 200_000, b"[" * 200_000, b'{"a":' * 50_000, b"(" * 50_000]
INSERTED += [b" " * 50_000, b"<unk>", b"<eos>", b"PK\x03\x04", b"\x1f\x8b", "\u202e\u2028".encode()]


def zipped(name, text):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, text)
    return buffer.getvalue()


def splits(template, text, names=("train", "dev", "test")):
    return {template.format(name): text for name in names}


def tag_again(path):
    lines = list(iter_lines(path))
    blocks = list(lines_to_tag(lines, where=str(path)))
    tagged = [tagged_lines(block, ["T"] * len(block.words)) for block in blocks]
    assert sum(map(len, tagged)) == len(lines)


def labelled(folder):
    corpus = find_labelled_text(folder)
    return sentence_corpus(corpus.labelled(review_words)).fingerprint, corpus.about


def reviews(path):
    return sentence_corpus(
        sentence_corpora.imdb_splits(sentence_corpora.read_imdb(path))
    ).fingerprint


def tagged(dataset, path):
    return with_entities(find_tagged_corpus(dataset, path), "IOB1").fingerprint


CASES = {  # files, and what reads them
    "columns to tag": ({"x.txt": COLUMNS}, lambda path: tag_again(path / "x.txt")),
    "entities": (splits("{}.conll.gz", COLUMNS), lambda path: tagged("columns", path)),
    "conll2000.zip": (
        {"c.zip": zipped("conll2000/train.txt", COLUMNS)},
        lambda path: list(iter_lines(path / "c.zip", "conll2000/train.txt")),
    ),
    "ud": (
        splits("a-ud-{}.conllu", CONLLU),
        lambda path: find_tagged_corpus("ud", path).fingerprint,
    ),
    "sst": (
        splits("{}.txt", TREES),
        lambda path: sentence_corpus(sentence_corpora.find_sst(path, phrases=True)[0]).about,
    ),
    "sick": (
        splits("SICK_{}.txt", SICK, ("train", "trial", "test_annotated")),
        lambda path: sentence_corpus(sentence_corpora.find_sick(path)[0]).fingerprint,
    ),
    "imdb": (splits("{}.jsonl", REVIEWS, ("train", "test")), reviews),
    "ptb": (splits("ptb.{}.txt", TEXT, ("train", "valid", "test")), corpora.read_ptb),
    "text.gz": (splits("{}.tokens.gz", TEXT), lambda path: read_corpus(path).about),
    "vectors": (
        {"v.gz": VECTORS},
        lambda path: read_word_vectors(path / "v.gz", {"the", "10 000"}, 3),
    ),
    "tsv": (splits("{}.tsv", "text\tlabel\nso good\tjoy\nbad\tgrief\n"), labelled),
    "csv": ({"train.csv": CSV}, labelled),
}


@st.composite
def mutated(draw, data):
    """Return the data with one to four changes."""
    for kind in draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((1, 2, 5, 20))))
        if kind == 0:
            data = data[:start] + data[start:end] * draw(st.sampled_from((0, 2, 50))) + data[end:]
        elif kind == 1:
            data = data[:start] + draw(st.binary(max_size=20)) + data[end:]
        elif kind == 2:
            data = data[:start]
        elif kind == 3:
            data = b"\n".join(draw(st.permutations(data.split(b"\n")[:30])))
        elif kind == 4:
            data = data.replace(b"\n", draw(st.sampled_from((b"\r", b"\r\n", b"\n\r", b" "))))
        else:
            data = data[:start] + draw(st.sampled_from(INSERTED)) + data[start:]
    return data


def written(folder, files, change=lambda data: data):
    """Write files, with `change` applied to the first one."""
    for name, text in files.items():
        data = text.encode() if isinstance(text, str) else text
        write(folder / name, change(data))
        change = lambda data: data


def refusal(read, folder):
    """Return the message with which a folder is refused, or None if it is read."""
    tracemalloc.start()
    try:
        read(folder)
    except UserError as error:
        message = str(error)
        assert len(message) < 300 and printable(message) == message, message[:500]
        return message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY, peak
    return None


@pytest.mark.parametrize("name", CASES)
@settings(
    max_examples=12,
    deadline=20_000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_mutated_files_are_read_or_refused(name, data):
    files, read = CASES[name]
    folder = Path(tempfile.mkdtemp())
    try:
        written(folder, files, lambda given: data.draw(mutated(given)))
        first = folder / next(iter(files))
        if first.suffix == ".gz" and data.draw(st.booleans()):
            first.write_bytes(data.draw(mutated(gzip.compress(first.read_bytes()[:20], mtime=0))))
        refusal(read, folder)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", CASES)
def test_unharmed_files_are_read_and_pipes_refused(name, tmp_path):
    files, read = CASES[name]
    written(tmp_path, files)
    message = refusal(read, tmp_path)
    assert message is None or (name == "ptb" and "is not the published text" in message)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        path.unlink()
        os.mkfifo(path)
    assert refusal(read, tmp_path) is not None
