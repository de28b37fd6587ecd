"""Check the taggers' commands on a few sentences: training, predict, explain, compare, and bad input."""

import io
import json
import sys

import numpy as np
import pytest
from commands import assert_picture, assert_user_error, row_of, run_code

from dynskip_jax import load_run
from dynskip_jax.commands.predict import read_input
from dynskip_jax.data.tag_schemes import first_problem
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import find_experiment
from dynskip_jax.experiments.conll2003.config import EntityData
from dynskip_jax.tasks.entity_score import entity_score

NER, POS = find_experiment("conll2003"), find_experiment("pos")
SMALL = (
    *("--features", 4, "--embedding-features", 4),
    *("--batch-size", 10, "--epochs", 2, "--devices", 1),
)
LEARNS = ("--model", "lstm", "--characters", "none", "--epochs", 20, "--patience", 0, "--learning-rate", 0.1)
# 20 sentences of at most 8 words, tagged in IOB1. `columns` writes them in four columns, as in CoNLL-2003.
SENTENCES = """
EU/I-ORG rejects/O German/I-MISC call/O
Peter/I-PER Blackburn/I-PER
BRUSSELS/I-LOC 1996-08-22/O
The/O European/I-ORG Commission/I-ORG said/O on/O Thursday/O
Germany/I-LOC imported/O 47,600/O sheep/O
Bonn/I-LOC London/B-LOC talks/O
Fischler/I-PER proposed/O it/O in/O France/I-LOC
Hendrix/I-PER died/O in/O 1970/O
China/I-LOC and/O Taiwan/I-LOC
Taipei/I-LOC has/O denied/O it/O
Jean/I-PER de/I-PER la/I-PER Tour/I-PER left/O
Reuters/I-ORG reported/O from/O New/I-LOC York/I-LOC
Smith/I-PER Jones/B-PER
A/O cat/O sat/O
The/O British/I-MISC Council/I-ORG
it/O rained/O
Ann/I-PER Lee/I-PER saw/O Bonn/I-LOC
Rome/I-LOC 1960/O
The/O U.N./I-ORG met/O
Lee/I-PER flew/O to/O China/I-LOC
""".strip().splitlines()


def columns(lines, kind="NN"):
    sentences = []
    for line in lines:
        words = [pair.rpartition("/")[::2] for pair in line.split()]
        sentences.append("".join(f"{word} {kind} I-NP {tag}\n" for word, tag in words))
    return "\n".join(sentences)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ner")
    (folder / "eng.train").write_text("-DOCSTART- -X- O O\n\n" + columns(SENTENCES))
    (folder / "eng.testa").write_text(columns(SENTENCES[:7]))
    (folder / "eng.testb").write_text(columns(SENTENCES[7:13]))
    return folder


@pytest.fixture(scope="module")
def compared(command, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    outcome = command(
        *(NER, "--data", corpus, "--compare", "lstm,dynamic:3", "--seeds", 2, *SMALL),
        *("--characters", "none", "--run-dir", folder),
    )
    assert outcome.status == 0, outcome.err
    return folder, outcome


@pytest.fixture(scope="module")
def tagged(command, corpus, tmp_path_factory):
    """Train a plain LSTM until it finds some of the entities, and return the run folder and the outcome.

    Its compiled programs are the smallest.
    """
    folder = tmp_path_factory.mktemp("runs") / "tagged"
    outcome = command(NER, "--data", corpus, *SMALL, *LEARNS, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    return folder, outcome


@pytest.mark.slow
def test_it_trains_and_scores(tagged, corpus):
    folder, outcome = tagged
    assert (
        "train 20, dev 7, test 6" in outcome.out and "words that are not known: 0 % of train" in outcome.out
    )
    assert "F1" in outcome.out and "Published rows are left out" in outcome.out
    metrics = row_of(folder)["metrics"]
    assert metrics.keys() >= {"test_f1", "test_f1_LOC", "test_f1_PER", "test_accuracy", "dev_f1"}
    assert (folder / "plots" / "learning_curve.png").stat().st_size > 1000
    # The F1 of the table equals that of sentences read one by one.
    trained = load_run(folder)
    gold = [[pair.rpartition("/")[2] for pair in line.split()] for line in SENTENCES[7:13]]
    found = []
    for line in SENTENCES[7:13]:
        words = [pair.rpartition("/")[0] for pair in line.split()]
        encoded = trained.vocabulary.encode(words)
        _, tags = trained.learner.read(trained.params, encoded, len(words), trained.policy)
        found.append([trained.vocabulary.tags[tag] for tag in np.asarray(tags)])
    score = entity_score(gold, found).overall.f1
    np.testing.assert_allclose(metrics["test_f1"]["mean"], score)
    assert 0 < score < 1


def predicted(command, main, monkeypatch, folder, text, *flags):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    outcome = command(main, "predict", "--run-dir", folder, *flags)
    assert outcome.status == 0, outcome.err
    return outcome.out


def test_scores_of_each_type_are_shown_and_stored(tagged):
    folder, outcome = tagged
    metrics = {name: of["mean"] for name, of in row_of(folder)["metrics"].items()}
    p, r = metrics["test_precision_PER"], metrics["test_recall_PER"]
    assert metrics["test_f1_PER"] == pytest.approx(2 * p * r / max(p + r, 1e-9))
    assert metrics["test_support_PER"] == 4 and metrics["dev_support_LOC"] == 5
    lines = [line.split() for line in outcome.out.splitlines()]
    assert ["type", "precision", "recall", "F1", "support"] in lines
    assert "confusion on dev, seed 0" in outcome.out
    assert [row[-1] for row in lines if row[:1] == ["LOC"] and len(row) == 5] == ["5"]
    assert_picture(folder / "plots" / "confusion.png")


def test_predict_scores_what_has_tags_and_writes_the_scheme_of_the_training_files(command, tagged, corpus):
    folder, _ = tagged
    how = ("--input", corpus / "eng.testa", "--format", "columns", "--scheme", "trained")
    outcome = command(NER, "predict", "--run-dir", folder, *how, "--score")
    assert outcome.status == 0 and "entities are written in IOB1" in outcome.err, outcome.err
    tags = [line.split()[-1] for line in outcome.out.splitlines() if line]
    assert tags and not any(tag[0] in "ES" for tag in tags)
    overall = outcome.err.splitlines()[-1].split()
    assert overall[:1] == ["all"] and overall[3] == f"{row_of(folder)['metrics']['dev_f1']['mean']:.2%}"
    assert_user_error(command(NER, "predict", "--run-dir", folder, "--score"), "--format columns")
    outcome = command(NER, "predict", "--run-dir", folder, *how, "--score", "--tag-column", 1)
    assert outcome.status == 2 and "expected tags of entities, found no scheme" in outcome.err


@pytest.mark.slow
def test_compared_taggers_are_scored_alike(compared):
    folder, _ = compared
    rows = json.loads((folder / "result.json").read_text())["rows"]
    for row in rows:
        assert row["metrics"].keys() >= {"test_f1", "test_f1_LOC", "test_f1_PER", "test_accuracy", "dev_f1"}
    assert ["test_f1_averaged" in row["metrics"] for row in rows] == [False, True]
    for name in ("skips_by_tag_forward.png", "skips_by_tag_backward.png", "learning_curve.png"):
        assert (folder / "dynamic-3" / "plots" / name).stat().st_size > 1000


def test_predict_text(command, tagged, monkeypatch):
    folder, _ = tagged
    first, long = ["Peter", "lives", "in", "Bönn", ",", "Ω", "☃"], ["Bonn", "said"] * 30
    text = f"{' '.join(first)}\n\n{' '.join(long)}\nReuters\n"
    out = predicted(command, NER, monkeypatch, folder, text)
    blocks = [[line.split(" ") for line in block.splitlines()] for block in out.strip("\n").split("\n\n")]
    assert [[word for word, _ in block] for block in blocks] == [first, long, ["Reuters"]]
    for block in blocks:
        assert first_problem([tag for _, tag in block], "BIO2") is None
    # Each word has a tag, also if long sentences are split and the scheme is another one.
    pieces = predicted(command, NER, monkeypatch, folder, text, "--max-words", 7, "--scheme", "BIOES")
    assert len(pieces.split()) == 2 * (7 + 60 + 1)


def test_predict_json(command, tagged, monkeypatch):
    folder, _ = tagged
    words = ["Peter", "Blackburn", "saw", '"Bonn"']
    text = f"{' '.join(words)}\n\nReuters\n"
    records = [
        json.loads(line)
        for line in predicted(command, NER, monkeypatch, folder, text, "--output", "json").splitlines()
    ]
    tokens = ["Peter", "Blackburn", "saw", '"', "Bonn", '"']
    assert [record["words"] for record in records] == [tokens, ["Reuters"]]
    apart = predicted(command, NER, monkeypatch, folder, text, "--output", "json", "--no-raw-text")
    assert json.loads(apart.splitlines()[0])["words"] == words
    for record in records:
        assert len(record["tags"]) == len(record["words"])
        starts = [i for i, tag in enumerate(record["tags"]) if tag.startswith("B-")]
        assert [entity["start"] for entity in record["entities"]] == starts
        for entity in record["entities"]:
            assert entity["text"] == " ".join(record["words"][entity["start"] : entity["end"]])


def test_predict_columns_keeps_what_it_reads(command, tagged, monkeypatch, tmp_path):
    folder, _ = tagged
    lines = ["-DOCSTART- -X- -X-", "", "x\tPeter\tNNP", "x\tsaw\tVB", "", "", "y\tBonn\tNNP"]
    path = tmp_path / "in.conll"
    path.write_text("\n".join(lines) + "\n")
    out = predicted(
        command, NER, monkeypatch, folder, "", "--input", path, "--format", "columns", "--word-column", 1
    )
    for before, after in zip(lines, out.splitlines(), strict=True):
        if "\t" in before:
            kept, _, tag = after.rpartition("\t")
            assert kept == before and (tag == "O" or tag[1] == "-")
        else:
            assert after == before
    as_text = predicted(command, NER, monkeypatch, folder, "Peter saw\nBonn\n")
    tags = [line.rpartition("\t")[2] for line in out.splitlines() if "\t" in line]
    assert tags == [line.split(" ")[1] for line in as_text.splitlines() if line]


def test_predict_conllu_writes_entities_beside_what_it_reads(command, tagged, tmp_path):
    folder, _ = tagged
    lines = [
        "# sent_id = 1",
        "1\tPeter\tPeter\tPROPN\tNNP\t_\t2\tnsubj\t_\tSpaceAfter=No|NER=B-LOC",
        "2\tsaw\tsee\tVERB\tVBD\t_\t0\troot\t_\t_",
        "3\tBonn\tBonn\tPROPN\tNNP\t_\t2\tobj\t_\tSpaceAfter=No",
    ]
    source, written = tmp_path / "in.conllu", tmp_path / "out.conllu"
    source.write_text("\n".join(lines) + "\n")
    tag = lambda path, *flags: command(
        *(NER, "predict", "--run-dir", folder, "--format", "conllu", "--input", path, *flags)
    )
    outcome = tag(source)
    assert outcome.status == 0, outcome.err
    found = [line.split("\t") for line in outcome.out.splitlines()]
    assert [row[:9] for row in found] == [line.split("\t")[:9] for line in lines]
    tags = [row[9].rpartition("NER=")[2] for row in found[1:]]
    assert all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags)
    assert [row[9] for row in found[1:]] == [
        f"{before}NER={tag}"
        for before, tag in zip(("SpaceAfter=No|", "", "SpaceAfter=No|"), tags, strict=True)
    ]
    written.write_text(outcome.out)
    outcome = tag(written, "--score")
    assert outcome.status == 0 and outcome.out == written.read_text(), outcome.err
    assert outcome.err.splitlines()[-1].split()[:3] == ["all", "100.00%", "100.00%"]
    outcome = tag(source, "--score")
    assert outcome.status == 2 and "some words of the input have no tag (_)" in outcome.err
    refused = tag(written, "--score", "--tag-column", 3)
    assert_user_error(refused, "--tag-column is for --format columns")


def test_a_tagger_of_other_columns_does_not_read_conllu():
    flags = {"input": None, "format": "conllu", "word_column": None, "score": False}
    with pytest.raises(
        UserError, match=r"\(--columns 1,2\), which CoNLL-U does not have: give --format columns"
    ):
        read_input(flags, EntityData(columns=(1, 2)), 9)


def test_predict_writes_each_sentence_before_it_reads_the_next(command, tagged, monkeypatch):
    folder, _ = tagged
    seen = []

    def slow():
        for line in ("Peter\n", "Bonn said\n", "it\n"):
            seen.append(len(sys.stdout.getvalue().split("\n\n")) - 1)
            yield line

    class Slow(io.TextIOBase):
        def __iter__(self):
            return slow()

    monkeypatch.setattr(sys, "stdin", Slow())
    outcome = command(NER, "predict", "--run-dir", folder, "--at-once", 1)
    assert outcome.status == 0, outcome.err
    assert seen == [0, 1, 2]
    # Tags do not depend on the number of sentences read at once.
    assert outcome.out == predicted(command, NER, monkeypatch, folder, "Peter\nBonn said\nit\n")


@pytest.mark.slow
def test_columns_beside_the_words_are_read(command, tmp_path, monkeypatch):
    """The words are independent of the tags here; the second column determines them."""
    rng = np.random.default_rng(0)
    pairs = [[(rng.choice(["a", "b", "c"]), rng.integers(2)) for _ in range(6)] for _ in range(60)]

    def lines(sentences):
        return "\n".join(
            "".join(f"{w} {'NN' if n else 'VB'} X {'B-N' if n else 'O'}\n" for w, n in s) for s in sentences
        )

    for name, part in (("train", pairs[:40]), ("dev", pairs[40:50]), ("test", pairs[50:])):
        (tmp_path / f"{name}.txt").write_text(lines(part))
    folder = tmp_path / "run"
    outcome = command(
        *(NER, "--dataset", "columns", "--data", tmp_path, "--columns", 1, "--model", "lstm", *SMALL),
        *("--characters", "none", "--epochs", 15, "--learning-rate", 0.05, "--run-dir", folder),
    )
    assert outcome.status == 0, outcome.err
    assert json.loads((folder / "result.json").read_text())["rows"][0]["metrics"]["test_f1"]["mean"] == 1
    words = "a NN X\na VB X\n\nb VB X\n"
    found = predicted(command, NER, monkeypatch, folder, words, "--format", "columns")
    assert [line.split()[-1] for line in found.splitlines() if line] == ["B-N", "O", "O"]
    outcome = command(NER, "predict", "--run-dir", folder, "--input", tmp_path / "test.txt")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1) and "--format columns" in outcome.err
    outcome = command(NER, "--dataset", "columns", "--data", tmp_path, "--columns", 7, *SMALL)
    assert outcome.status == 2 and "train.txt, line 1: no column 7 among 4" in outcome.err


@pytest.mark.slow
def test_the_page_on_ones_own_analysis_reads_taggers(compared):
    names = run_code("own_analysis.md", "learner_with", run_dir=compared[0], text="Peter saw Bonn and Zürich")
    reading, output = names["reading"], names["output"]
    forward, backward = (np.asarray(decision.action[0]).tolist() for decision in output.decisions)
    assert (reading.skips, reading.backward) == (forward, backward)
    assert names["words"] == ["Peter", "saw", "Bonn", "and", "Zürich"]


@pytest.mark.slow
def test_explain_draws_both_directions(command, compared):
    folder, _ = compared
    outcome = command(NER, "explain", "--run-dir", folder, "--text", "Peter saw Bonn and Zürich")
    assert outcome.status == 0, outcome.err
    assert "dynamic:3, forward:" in outcome.out and "dynamic:3, backward:" in outcome.out
    assert "lstm, dynamic:3 do not know Zürich" in outcome.out and "perplexity" not in outcome.out
    pictures = sorted(path.name for path in (folder / "plots").glob("explain-dynamic-3-seed-0-*.png"))
    assert len(pictures) == 2 and "backward" in pictures[0] and "forward" in pictures[1]


@pytest.mark.slow
def test_compare_is_a_paired_bootstrap(command, compared, corpus):
    folder, _ = compared
    outcome = command(NER, "compare", "--run-dir", folder, "--data", corpus, "--samples", 200)
    assert outcome.status == 0, outcome.err
    rows = json.loads((folder / "result.json").read_text())["rows"]
    for row in rows:
        assert f"{row['metrics']['test_f1']['mean']:.2%}" in outcome.out
    assert "may be chance" in outcome.out or "differs" in outcome.out
    (corpus.parent / "other").mkdir()
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (corpus.parent / "other" / name).write_text(columns(SENTENCES[:6]))
    outcome = command(NER, "compare", "--run-dir", folder, "--data", corpus.parent / "other")
    assert outcome.status == 2 and "was trained on other data" in outcome.err
    outcome = command(NER, "compare", "--run-dir", folder / "lstm", "--data", corpus)
    assert outcome.status == 2 and "holds one model" in outcome.err


@pytest.mark.slow
def test_compare_takes_runs_that_read_other_columns(command, compared, corpus, tmp_path):
    plain, wide = compared[0] / "lstm", tmp_path / "wide"
    more = ("--model", "lstm", "--characters", "none", "--columns", 1, "--run-dir", wide)
    assert command(NER, "--data", corpus, *more, *SMALL).status == 0
    outcome = command(NER, "compare", "--run-dir", f"{plain},{wide}", "--samples", 200)
    assert outcome.status == 0, outcome.err
    for folder in (plain, wide):
        assert f"{row_of(folder)['metrics']['test_f1']['mean']:.2%}" in outcome.out


@pytest.mark.slow
def test_gradients_reach_back_as_far_as_the_last_word(command, compared, corpus):
    folder, _ = compared
    outcome = command(NER, "gradients", "--run-dir", folder, "--data", corpus, "--steps", 3)
    assert outcome.status == 0, outcome.err
    rows = [line.split("│")[1:-1] for line in outcome.out.splitlines() if line.startswith("│")]
    shares = np.array(rows, float)
    assert shares[:, 0].tolist() == [1, 2, 3]
    np.testing.assert_allclose(shares[:, 1:].sum(axis=0), 1, atol=0.02)
    assert (shares[2, 1:] > shares[0, 1:]).all()  # networks forget after little training
    assert (folder / "plots" / "gradients.png").stat().st_size > 1000
    outcome = command(NER, "gradients", "--run-dir", folder, "--data", corpus, "--steps", 99)
    assert outcome.status == 2 and "no sentence of test has 99 words" in outcome.err


@pytest.mark.slow
def test_gradients_count_the_sentences_whose_last_tag_is_known(command, tmp_path):
    """Sentences whose last tag is not in train are left out.

    Three sentences have at least two words. Only one of them has a tag of train at its second word.
    """
    test = "cats NP\nrun VP\n\ncats NP\nslowly ADV\n\ncats NP\nso ADV\nso ADV\n\n"
    for split, text in (
        ("train", "cats NP\nrun VP\n\n" * 10),
        ("dev", "cats NP\nrun VP\n\n"),
        ("test", test),
    ):
        (tmp_path / f"{split}.txt").write_text(text)
    folder = tmp_path / "run"
    outcome = command(
        *(POS, "--dataset", "columns", "--data", tmp_path, "--unknown-tags", "wrong", "--model", "lstm"),
        *(*SMALL, "--characters", "none", "--epochs", 1, "--run-dir", folder),
    )
    assert outcome.status == 0, outcome.err
    outcome = command(POS, "gradients", "--run-dir", folder, "--steps", 2)
    assert outcome.status == 0, outcome.err
    assert "T = 2, 1 sentences of test" in " ".join(outcome.out.split())
    outcome = command(POS, "gradients", "--run-dir", folder, "--steps", 3)
    assert_user_error(outcome, "no sentence of test has 3 words, with a tag of train at the last of them")


@pytest.mark.slow
def test_vectors_are_where_words_begin(command, corpus, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("peter 1 2 3 4\nbonn 5 6 7 8\nnowhere 9 9 9 9\n")
    outcome = command(
        NER, "--data", corpus, "--model", "lstm", *SMALL, "--epochs", 1, "--learning-rate", 1e-30,
        "--embeddings", path, "--run-dir", tmp_path / "run",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert f"{path} has 2 of " in outcome.out
    trained = load_run(tmp_path / "run")
    table = np.asarray(trained.model.words.embedding[...])
    ids = trained.vocabulary.encode(["Peter", "Bonn"]).words
    np.testing.assert_allclose(table[ids], [[1, 2, 3, 4], [5, 6, 7, 8]], rtol=1e-5)
    others = np.delete(table, ids, axis=0)
    assert np.abs(others).max() <= (3 / 4) ** 0.5


def test_what_is_wrong_is_said_in_one_line(command, tagged, corpus, tmp_path):
    folder, _ = tagged
    wide = tmp_path / "wide.txt"
    wide.write_text("peter 1 2 3\n")
    lines = tmp_path / "columns.txt"
    lines.write_text("Peter NNP\n")
    bad = tmp_path / "bad"
    bad.mkdir()
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (bad / name).write_text(columns(SENTENCES).replace("I-MISC", "M-MISC"))
    for arguments, words in (
        ((), "was not found: put eng.train"),
        (("--dataset", "conll2000"), "conll2000.zip"),
        (("--data", bad), "eng.train, line 3: 'M-MISC' is no tag of IOB1"),
        (
            ("--data", corpus, *SMALL, "--embeddings", wide),
            "wide.txt has vectors of 3 numbers, but the model",
        ),
        (("--data", corpus, *SMALL, "--window", 2), "odd"),
        (("--data", corpus, *SMALL, "--columns", "1,3"), "eng.train, line 3: column 3 has the tags"),
        (("predict", "--run-dir", folder, "--input", tmp_path / "none"), "cannot be read"),
        (
            ("predict", "--run-dir", folder, "--input", lines, "--format", "columns", "--word-column", 5),
            "columns.txt, line 1: no column 5 among 2",
        ),
    ):
        outcome = command(
            NER, *arguments, *(("--run-dir", tmp_path / "x") if arguments[:1] != ("predict",) else ())
        )
        assert outcome.status == 2 and words in outcome.err and outcome.err.count("\n") == 1, outcome


@pytest.mark.slow
def test_parts_of_speech_from_columns(command, tmp_path, monkeypatch):
    folder = tmp_path / "ccg"
    folder.mkdir()
    tags = {"train": ("NP", "S\\NP"), "dev": ("NP", "(S\\NP)/NP"), "test": ("NP", "S\\NP")}
    for split, (noun, verb) in tags.items():
        text = "".join(f"cats{i} {noun}\nrun {verb}\n\n" for i in range(12))
        (folder / f"{split}.txt").write_text(text)
    arguments = (
        "--dataset",
        "columns",
        "--data",
        folder,
        "--model",
        "lstm",
        *SMALL,
        "--run-dir",
        tmp_path / "r",
    )
    outcome = command(POS, *arguments)
    assert outcome.status == 2 and "dev.txt, line 2: the tag (S\\NP)/NP is not in train" in outcome.err
    assert outcome.err.count("\n") == 1 and "--unknown-tags wrong" in outcome.err
    learn = ("--unknown-tags", "wrong", "--learning-rate", 0.05, "--epochs", 15, "--dropout", 0.1)
    outcome = command(POS, *arguments, *learn)
    assert outcome.status == 0, outcome.err
    result = json.loads((tmp_path / "r" / "result.json").read_text())["rows"][0]["metrics"]
    assert result["test_accuracy"]["mean"] == 1 and result["dev_accuracy"]["mean"] == 0.5
    out = predicted(command, POS, monkeypatch, tmp_path / "r", "cats77 run\n", "--output", "json")
    record = json.loads(out)
    assert record == {"words": ["cats77", "run"], "tags": ["NP", "S\\NP"]}
    outcome = command(POS, "explain", "--run-dir", tmp_path / "r", "--text", "cats1 run")
    assert outcome.status == 0 and "cats1/NP run/S\\NP" in outcome.out, outcome.err
