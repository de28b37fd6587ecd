"""Check that each reader of users' data reads mutated files or refuses them in one line, in little memory."""

import gzip
import io
import os
import shutil
import tarfile
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynskip_jax.data import corpora, find_labelled_text, find_tagged_corpus
from dynskip_jax.data.files import iter_lines
from dynskip_jax.data.language import read_corpus
from dynskip_jax.data.messages import printable
from dynskip_jax.data.sentences import review_words, sentence_corpus
from dynskip_jax.data.tagged import with_entities
from dynskip_jax.data.tagged_files import lines_to_tag, read_columns, tagged_lines
from dynskip_jax.data.word_vectors import read_word_vectors
from dynskip_jax.errors import UserError

MEMORY = 64 << 20
COLUMNS = (
    "-DOCSTART- -X- O O\n\n# id 7\tdomain=en\nU.N. NNP I-NP I-ORG\nsays VBZ I-VP O\n# # I-NP O\n\n"
    "Ann NNP I-NP I-PER\nLee NNP I-NP B-PER\n"
)
CONLLU = (
    "# text = Don't\n1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t_\n"
    "2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_\n2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_\n\n"
    "1\t26 000\t26000\tNUM\tCD\t_\t0\troot\t_\t_\n"
)
PARSES = "( (S (NP (DT The) (NN cat)) (-NONE- *T*) (-LRB- () (-RRB- )) (. .)))\n( (NN yes) )\n" * 10
TREES = "(3 (2 It) (4 (2 shines) (2 -LRB-)))\n(1 (2 Not) (1 (2 ()(2 good)))\n"
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\tA cat sits.\tA dog runs.\t3.5\n"
VECTORS = "3 3\nthe 0.5 -1 2\n10 000 1 2 3\ncat 1e-3 0 1\n"
REVIEWS = '{"text": "so good \\u00e9", "label": 1}\n{"text": "so bad", "label": 0}\n' * 7
CSV = 'text,label\n"so ""good"", yes",joy\nbad,grief\n' * 12
TEXT = "the cat sat\non <unk> mat\n\nthe dog\n" * 3
IMDB = [f"{s}/{k}/{i}_9.txt" for s in ("train", "test") for k in ("neg", "pos") for i in range(4)]
INSERTED = [
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t\t", b" ", b"(", b")", b"()", b"#", b"\\", b"/"),
    *(b"\x1b[31m", b"\x9b", b'"', b"\\ud800", b",", b"-", b"_", b"1e999", b"nan", b"9" * 5000, b"# a = b\n"),
    *(b"2-1", b"B-", b"I-X", b"O", b"-DOCSTART-", b"x" * 200_000, b"[" * 200_000, b'{"a":' * 50_000),
    *(b"(" * 50_000, b" " * 50_000, b"<unk>", b"<eos>", b"PK\x03\x04", b"\x1f\x8b"),
    *(text.encode() for text in ("\u202e", "\u2028", "\u00a0", "e\u0301👩\u200d👧")),
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


def labelled(folder):
    corpus = find_labelled_text(folder, split_seed=0)
    return sentence_corpus("x", corpus.labelled(review_words), "here").fingerprint, corpus.about


def reviews(found):
    return sentence_corpus("x", corpora.imdb_splits(found), "here").fingerprint


def tagged(*where, **options):
    return with_entities(find_tagged_corpus(*where), **options).fingerprint


CHUNKS = {f"conll2000/{name}.txt": COLUMNS * 9 for name in ("train", "test")}
FILES = {
    "columns.gz": {"x.gz": COLUMNS},
    "columns to tag": {"x.txt": COLUMNS},
    "conllu to tag": {"x.conllu": CONLLU},
    "entities": splits(".conll", COLUMNS),
    "conll2003": splits("", COLUMNS, ("eng.train", "eng.testa", "eng.testb")),
    "conll2000.zip": {"c.zip": zipped(CHUNKS)},
    "treebank.zip": {"t.zip": zipped({"a.mrg": PARSES})},
    "ud": splits(".conllu", CONLLU, ("a-ud-train", "a-ud-dev", "a-ud-test")),
    "sst": splits(".txt", TREES),
    "sick": splits(".txt", SICK, ("SICK_train", "SICK_trial", "SICK_test_annotated")),
    "imdb": splits(".jsonl", REVIEWS, ("train", "test")),
    "imdb folder": dict.fromkeys(IMDB, "so bad<br />"),
    "imdb archive": {"a.tgz": tarred({f"aclImdb/{name}": "so bad" for name in IMDB})},
    "ptb": splits(".txt", TEXT, ("ptb.train", "ptb.valid", "ptb.test")),
    "text.gz": splits(".tokens.gz", TEXT),
    "one text": {"novel.txt": TEXT},
    "vectors": {"v.gz": VECTORS},
    "tsv": splits(".tsv", "text\tlabel\nso good\tjoy\nbad\tgrief\n"),
    "csv": {"train.csv": CSV},
    "json lines": splits(".jsonl", REVIEWS),
    "folders of classes": {
        f"{name}/{i}.txt": f"so {name} {i}" for name in ("good", "bad") for i in range(10)
    },
}
READ = {
    "columns.gz": lambda folder: read_columns(folder / "x.gz", beside=(1,)),
    "columns to tag": lambda folder: tag_again(folder / "x.txt", "columns"),
    "conllu to tag": lambda folder: tag_again(folder / "x.conllu", "conllu"),
    "entities": lambda folder: tagged("columns", folder),
    "conll2003": lambda folder: tagged("conll2003", folder),
    "conll2000.zip": lambda folder: tagged("conll2000", folder / "c.zip", scheme="IOB1"),
    "treebank.zip": lambda folder: find_tagged_corpus("wsj", folder / "t.zip"),
    "ud": lambda folder: find_tagged_corpus("ud", folder),
    "sst": lambda folder: sentence_corpus("x", corpora.find_sst(folder, phrases=True)[0], "here").about,
    "sick": lambda folder: sentence_corpus("x", corpora.find_sick(folder)[0], "here").fingerprint,
    "imdb": lambda folder: reviews(corpora.read_imdb(folder)),
    "imdb folder": lambda folder: reviews(corpora.read_imdb(folder)),
    "imdb archive": lambda folder: reviews(corpora.read_imdb(folder / "a.tgz")),
    "ptb": corpora.read_ptb,
    "text.gz": lambda folder: read_corpus(folder).about,
    "one text": lambda folder: read_corpus(folder / "novel.txt").fingerprint,
    "vectors": lambda folder: read_word_vectors(folder / "v.gz", {"the", "cat", "10 000"}, 3),
}


@st.composite
def mutated(draw, data):
    """Return the data with one to four changes."""
    data = bytes(data)
    for kind in draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((1, 2, 5, 20))))
        if kind == 0:
            data = data[:start] + data[end:]
        elif kind == 1:
            data = data[:start] + data[start:end] * draw(st.sampled_from((2, 50))) + data[end:]
        elif kind == 2:
            data = data[:start] + draw(st.binary(max_size=20)) + data[end:]
        elif kind == 3:
            data = data[:start]
        elif kind == 4:
            data = b"\n".join(draw(st.permutations(data.split(b"\n")[:30])))
        elif kind == 5:
            data = data.replace(b"\n", draw(st.sampled_from((b"\r", b"\r\n", b"\n\r", b" "))))
        else:
            data = data[:start] + draw(st.sampled_from(INSERTED)) + data[start:]
    return data


def written(folder, files, change=lambda data: data, after=lambda data: data):
    for number, (name, text) in enumerate(files.items()):
        data = text.encode() if isinstance(text, str) else text
        data = data if number else change(data)
        if name.endswith(".gz"):
            data = gzip.compress(data, mtime=0)
            data = data if number else after(data)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


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


@pytest.mark.parametrize("name", FILES)
@settings(
    max_examples=12, deadline=20_000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_mutated_files_are_read_or_refused(name, data):
    files, read = FILES[name], READ.get(name, labelled)
    folder = Path(tempfile.mkdtemp())
    is_packed = data.draw(st.booleans())
    try:
        change = lambda given: data.draw(mutated(given))
        written(folder, files, after=change) if is_packed else written(folder, files, change)
        refusal(read, folder)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", FILES)
def test_unharmed_files_are_read_and_pipes_refused(name, tmp_path):
    files, read = FILES[name], READ.get(name, labelled)
    written(tmp_path, files)
    message = refusal(read, tmp_path)
    assert message is None or (name == "ptb" and "is not the published text" in message)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        path.unlink()
        os.mkfifo(path)
    assert refusal(read, tmp_path) is not None
