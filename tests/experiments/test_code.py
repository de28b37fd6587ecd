"""Check source code: the scores, and that `complete` and `explain` show what a run computes."""

import io
import json
import os
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import PTB, assert_user_error, execute, finished_run, row_of, succeed
from compiled import compiled
from learners import drawn_params, language_modelling, plain, together
from pages import code_of, run_code

from dynskip_jax import functional as F
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.data import LanguageCorpus
from dynskip_jax.data.source_code import code_tokens
from dynskip_jax.data.vocabularies import FILE, CodeToken, code_vocabulary
from dynskip_jax.experiments.code.reading import _read as read_part
from dynskip_jax.experiments.code.reading import predictions
from dynskip_jax.experiments.code.task import CodeModelling, ranks
from dynskip_jax.runs.load import load_run
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks.language import LanguageModelling, OfTargets

CODE = find_experiment("code")
SMALL = (
    *("--features", 4, "--num-layers", 1, "--num-steps", 5, "--batch-size", 4, "--epochs", 1),
    *("--devices", 1),
)
COPYING = ("--model", "dynamic:3", "--agent-features", 2, *SMALL)
TEXT = """def area(width, height):
    return width * height

print(area(3, rare_name))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write six packages of a module each, with names that return in their file."""
    root = tmp_path_factory.mktemp("code") / "project"
    root.mkdir()
    for name in ("one", "two", "three", "four", "five", "six"):
        text = TEXT.replace("rare_name", f"{name}_name") + f"{name}_name = {name}_name\n" * 3
        (root / f"{name}.py").write_text(text)
    return root


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    return finished_run(CODE, run, "--data", folder, *COPYING)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Write a file of more tokens than are read in one call."""
    path = tmp_path_factory.mktemp("files") / "long.py"
    path.write_text(TEXT * 12)
    return path


def test_training_prints_and_stores_the_scores(trained):
    said = trained.outcome.out
    assert "data: project" in said and "\nfiles: train " in said and "top-1, names" in said
    metrics = row_of(trained.folder)["metrics"]
    for group in ("", "names_", "new_names_"):
        for score in ("accuracy", "top5", "mrr"):
            assert 0 <= metrics[f"test_{group}{score}"]["mean"] <= 1
    assert metrics["test_accuracy"]["mean"] <= metrics["test_mrr"]["mean"]
    assert "finished already" in succeed(CODE, *trained.arguments, "--run-dir", trained.folder).out


def whole(model, inputs):
    """Read all inputs of a file in one call, and return each output without the batch axis."""
    output = compiled(model)(
        jnp.asarray(inputs)[None], policy=F.Policy("greedy"), deterministic=True
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf[0], float), output)


def expected_of(folder, text):
    """Return the inputs of a file with the token to predict after each, and the model's output for
    them.
    """
    run = load_run(folder)
    vocabulary, tokens = run.vocabulary, list(code_tokens("a.py", text))
    ids = vocabulary.encode([FILE, *vocabulary.number(tokens)])
    return run, tokens, ids, whole(run.model, ids)


def share_of_each(output, t, token):
    """Return the probability with which a token is copied by each k at step t."""
    gate = 1 / (1 + np.exp(-output.copies.gates[t, 0]))
    weights = output.copies.weights[t]
    if len(weights) == 1:  # a hard choice
        weights = np.eye(3)[int(output.decisions[-1].action[t]) - 1]
    return gate * weights * (output.choices.words[t] == token)


def piped(text, encoding="utf-8"):
    return io.TextIOWrapper(io.BytesIO(text.encode(encoding)))


def test_complete_lists_the_likeliest_tokens_with_real_names_and_places(trained, file):
    # At the 3 in the last line but one: the text before it is shorter than the file.
    text = file.read_text()
    line = text.count("\n")
    offset = text.rindex("3, rare_name")
    run, tokens, _, output = expected_of(trained.folder, text)
    tokens = [token for token in tokens if token.start < offset]
    probs, t = np.exp(output.logits[len(tokens)]), len(tokens)
    assert probs.sum() == pytest.approx(1, abs=1e-4)

    place = f"{file}:{line}:{len('print(area(') + 1}"
    outcome = succeed(
        CODE, "complete", place, "--run-dir", trained.folder, "--json", "--count", 400
    )
    found = json.loads(outcome.out)
    listed = {entry["token"]: entry for entry in found}
    assert len(listed) == len(found)
    assert sum(entry["probability"] for entry in found) == pytest.approx(1, abs=1e-4)
    numbered = dict(zip(run.vocabulary.number(tokens), tokens, strict=True))
    assert numbered["<name-0>"].text == "rare_name" and "<name-0>" not in listed
    assert "<new name>" in listed
    for name in ("rare_name", "width", "print", "("):
        token = run.vocabulary.index[{"rare_name": "<name-0>"}.get(name, name)]
        assert listed[name]["probability"] == pytest.approx(probs[token], abs=1e-5)
        shares = share_of_each(output, t, token)
        assert listed[name]["copied"] == pytest.approx(sum(shares) / probs[token], abs=1e-4)
    # The tokens `(`, `area` and `(` are the last three, which can be copied.
    places = {
        entry["token"]: (entry["line"], entry["column"]) for entry in found if "line" in entry
    }
    assert places in ({"(": (line, 11), "area": (line, 7)}, {"(": (line, 6), "area": (line, 7)})
    shares = share_of_each(output, t, run.vocabulary.index["("])
    assert places["("] == (line, 11 if shares[0] > shares[2] else 6)

    table = succeed(CODE, "complete", place, "--run-dir", trained.folder, "--count", 3).out
    assert table.startswith("after: print(area(") and len(re.findall(r"0\.\d{3}", table)) == 3
    by_input = ("complete", "-", "--run-dir", trained.folder, "--json", "--count", 400)
    assert json.loads(succeed(CODE, *by_input, standard_input=piped(text[:offset])).out) == found
    to_the_end = (f"{file}:{line}", f"{file}:{line}:{len('print(area(3, rare_name))') + 1}")
    outs = [
        succeed(CODE, "complete", at, "--run-dir", trained.folder, "--json").out
        for at in to_the_end
    ]
    assert outs[0] == outs[1] != outcome.out


@pytest.mark.parametrize("unfinished", ["print(area(\n", "x = '", "if x:\n  y\n z"])
def test_unfinished_files_are_completed(unfinished, trained, tmp_path):
    (tmp_path / "a.py").write_text(TEXT + unfinished)
    outcome = succeed(CODE, "complete", tmp_path / "a.py", "--run-dir", trained.folder, "--json")
    assert len(json.loads(outcome.out)) == 10


@pytest.mark.parametrize(
    ("text", "begins", "listed"),
    [
        ("self.wi", "wi", {"width", "width_of_it"}),
        ("x = wi|dth", "wi", {"width", "width_of_it"}),
        ("zebra = zeb", "zeb", {"zebra"}),
        ("x = नाम + ना", "ना", {"नाम"}),
        ("nothing_begins_so", "nothing_begins_so", set()),
        ("x = 3", "", {"width", "(", "<newline>"}),
    ],
)
def test_what_is_typed_is_the_beginning_of_what_is_listed(text, begins, listed, trained, here):
    before = TEXT + f"width_of_it = {text}"
    (here / "a.py").write_text(before.replace("|", ""), encoding="utf-8")
    column = len(before.partition("|")[0].rpartition("\n")[2]) + 1
    place = f"a.py:{before.count(chr(10)) + 1}:{column}"
    outcome = succeed(
        CODE, "complete", place, "--run-dir", trained.folder, "--json", "--count", 400
    )
    found = [entry["token"] for entry in json.loads(outcome.out)]
    assert outcome.out.isascii() and listed <= set(found)
    assert all(token.startswith(begins) for token in found)
    if not begins:
        assert set(found[-4:]) == {"<new name>", "<other>", "<number>", "<string>"}
    if not listed:
        said = succeed(CODE, "complete", place, "--run-dir", trained.folder).out
        assert said == f"no token that the model or the file has begins with {begins}\n"


def test_standard_input_is_read_as_its_first_line_says(trained):
    text = "# coding: latin-1\ncafé = 1\nx = ca"
    outcome = succeed(
        CODE,
        *("complete", "-", "--run-dir", trained.folder, "--json"),
        standard_input=piped(text, "latin-1"),
    )
    assert [entry["token"] for entry in json.loads(outcome.out)] == ["café"]


def test_a_process_that_stays_loaded_compiles_once(trained):
    run = load_run(trained.folder)
    compiled_before = None
    for text in (TEXT, TEXT * 20, "x = 1\n"):
        parts = list(predictions(run, list(code_tokens("a.py", text))))
        assert sum(len(part.probs) for part in parts) == len(list(code_tokens("a.py", text))) + 1
        compiled_before = compiled_before or read_part._cache_size()
        assert read_part._cache_size() == compiled_before


def test_the_loop_of_the_page_runs(trained):
    page = "docs/experiments/code.md"
    (code,) = code_of(page)
    names = run_code(page, code.replace("runs/mine", str(trained.folder)))
    assert len(names["found"]) == 5 and "token" in names["found"][0]


def test_explain_shows_probabilities_and_where_tokens_are_copied_from(trained, file):
    page = file.with_name("page.html")
    succeed(CODE, "explain", file, "--run-dir", trained.folder, "--html", page)
    text = file.read_text()
    _, tokens, ids, output = expected_of(trained.folder, text)
    assert len(tokens) > 256
    links = re.findall(
        r'<a id="t(\d+)"( href="#t\d+")? class="([^"]*)" title="([^"]*)">', page.read_text()
    )
    shown = {int(t): (link, classes, said) for t, link, classes, said in links}
    assert [*shown] == [t for t, token in enumerate(tokens) if token.stop > token.start]
    for t, (link, classes, said) in shown.items():
        true, softmax = ids[t + 1], np.exp(output.of_softmax[t])
        p, shares = np.exp(output.logits[t, true]), share_of_each(output, t, true)
        numbers = [
            float(number) for number in re.findall(r"(?:probability|copying) (\d\.\d+)", said)
        ]
        np.testing.assert_allclose(numbers, (p, softmax[true] / softmax.sum()), atol=6e-4)
        assert ("copied" in classes) == (shares.sum() > p / 2 and tokens[t].is_name)
        origin = t - 1 - shares.argmax()
        is_linked = origin >= 0 and shares.sum() >= p / 100
        assert link == (f' href="#t{origin}"' if is_linked else "")
    assert any("% copied, most from line" in said for _, _, said in shown.values())
    # Every character is there once, in its order.
    (code,) = re.findall(r"<pre>(.*)</pre>", page.read_text(), re.DOTALL)
    assert re.sub(r"<[^>]*>", "", code).replace("&#x27;", "'") == text
    before = page.read_bytes()
    assert_user_error(
        execute(CODE, "explain", file, "--run-dir", trained.folder, "--html", page), ".html exists"
    )
    assert page.read_bytes() == before
    assert "plots" in succeed(CODE, "explain", file, "--run-dir", trained.folder).out


@pytest.mark.parametrize(
    ("command", "where", "part"),
    [
        ("complete", "absent.py:1", "is no file"),
        ("complete", "a.py:5", "has 4 lines: there is no line 5"),
        ("complete", "a.py:1:99", "no column 99"),
        ("complete", "a.zebra", "no language"),
        ("explain", "empty.py", "has no code"),
        ("complete", "latin.py", "is no text"),
        ("explain", "prose.java", "more than 10,000 characters"),
        ("explain", "/dev/zero", "is no file"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(command, where, part, trained, here):
    (here / "a.py").write_text("x = 1\n" * 3)
    (here / "unended.py").write_text("x = 1")
    (here / "a.zebra").write_text("x = 1\n")
    (here / "empty.py").write_text("# nothing\n")
    (here / "latin.py").write_bytes(b"x = '\xe9'\n")
    (here / "rot13.py").write_text("# coding: rot13\n")
    (here / "prose.java").write_text("some words " * 4_000)
    (here / "large.py").write_text("x = 1\n" * 200_000)
    os.mkfifo(here / "pipe.py")
    assert_user_error(execute(CODE, command, where, "--run-dir", trained.folder), part)


@pytest.mark.slow
def test_a_model_that_copies_nothing_completes_too(folder, file, tmp_path, monkeypatch):
    models = ("--compare", "lstm,dynamic:3")
    run = finished_run(CODE, tmp_path / "run", "--data", folder, *models, *SMALL)
    result = RunDir.result
    unfinished = lambda run: None if run.path.name == "dynamic-3" else result(run)
    monkeypatch.setattr(RunDir, "result", unfinished)
    outcome = succeed(CODE, "complete", file, "--run-dir", run.folder, "--json")
    assert "dynamic:3: not finished, after 1 epochs, left out" in outcome.err
    found = json.loads(outcome.out)
    assert len(found) == 10 and not any(entry["copied"] or "line" in entry for entry in found)
    page = tmp_path / "page.html"
    succeed(CODE, "explain", file, "--run-dir", run.folder, "--html", page)
    assert 'href="#' not in page.read_text() and "without copying" in page.read_text()


def test_no_document_reaches_into_another(trained):
    run, tokens, ids, alone = expected_of(trained.folder, TEXT)
    both = whole(run.model, np.concatenate([ids, ids]))
    np.testing.assert_allclose(both.logits[len(ids) :], alone.logits, rtol=1e-4, atol=1e-5)
    assert len(tokens) > 20


def test_commands_are_for_runs_of_this_experiment(trained, finished_ptb, here):
    (here / "a.py").write_text("x = 1\n")
    for command in ("complete", "explain"):
        refused = execute(CODE, command, "a.py", "--run-dir", finished_ptb.folder)
        assert_user_error(refused, f"is a run of ptb, which has no command code.{command}")
    assert_user_error(
        execute(PTB, "complete", "a.py", "--run-dir", trained.folder), "no command 'complete'"
    )
    assert_user_error(execute(PTB, "explain", "--run-dir", trained.folder), "is a run of code")
    assert_user_error(execute(CODE, "--data", here / "a.py"), "is no folder: check its name")


# --- Scores ---


def corpus_of(size=37):
    """Return a corpus of random tokens in which names, numbered names and other tokens are
    frequent.
    """
    train = [CodeToken(text, 0, 0, text.isidentifier()) for text in ["self", "name", "(", ")"] * 3]
    vocabulary = code_vocabulary(train)
    likely = vocabulary.encode([FILE, "<name-0>", "<name-1>", "self", "name", "(", ")"])
    rng = np.random.default_rng(0)
    splits = {
        split: rng.choice(likely, size).astype(np.int32) for split in ("train", "dev", "test")
    }
    return LanguageCorpus("code", **splits, vocabulary=vocabulary, source="here")


def scores_by_hand(log_probs, targets, vocabulary):
    """Return the scores of each group of tokens from the whole distribution, in NumPy."""
    order = np.argsort(-log_probs, axis=-1)
    rank = 1 + np.argmax(order == targets[..., None], axis=-1)
    texts = np.array(vocabulary.tokens)[targets]
    numbered = np.char.startswith(texts, "<name-")
    groups = {
        "": rank > 0,
        "names_": numbered | np.isin(texts, ["self", "name"]),
        "new_names_": numbered,
    }
    values = {"accuracy": rank == 1, "top5": rank <= 5, "mrr": 1 / rank}
    return {f"{g}{s}": values[s][groups[g]].mean() for g in groups for s in values}


def test_scores_are_those_of_the_whole_distribution():
    corpus, rng = corpus_of(), np.random.default_rng(1)
    task = plain(CodeModelling, LanguageModelling, corpus, lambda rngs: None)
    logits = rng.normal(size=(3, 40, len(corpus.vocabulary))) * 2
    likely = np.unique(corpus.train)
    logits[..., likely] += 4
    targets = rng.choice(likely, (3, 40))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    of_target = np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
    pair = (
        OfTargets(of_target, log_probs.argmax(-1) == targets),
        -jnp.log(ranks(jnp.asarray(logits), targets)),
    )
    scored = task.compute_loss(pair, SimpleNamespace(targets=targets))
    found = task.metrics({name: np.mean(value) for name, value in scored.counted.items()}, "dev")
    expected = scores_by_hand(log_probs, targets, corpus.vocabulary)
    assert found.keys() == expected.keys() | {"perplexity"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    assert len({*expected.values()}) == len(expected)  # no two are alike by chance
    # A group without a token has no score, and training pays for none.
    others = {name: np.zeros(1) for name in scored.counted}
    assert not [name for name in task.metrics(others, "dev") if "names" in name]
    assert set(task.compute_loss(pair[0], SimpleNamespace(targets=targets)).counted) == {"nll"}


def test_every_token_of_a_split_is_scored_once():
    corpus = corpus_of()
    learner = language_modelling(corpus, skips=("dynamic:3",), num_steps=5, batch_size=3)
    how = dict(num_steps=5)
    task = plain(CodeModelling, LanguageModelling, corpus, learner.task.make_model, **how)
    params, keys = drawn_params(learner), jax.random.split(jax.random.key(5), 1)
    # 37 tokens do not fill four rows.
    found = learner.evaluate(together(params), "dev", keys, task=task, batch_size=4)
    inputs = np.append([0], corpus.dev[:-1]).astype(np.int32)
    rows = [
        whole(learner.model(params), np.resize(inputs[i : i + 10], 10)) for i in range(0, 40, 10)
    ]
    logits = np.concatenate([row.logits for row in rows])[:37]
    for name, value in scores_by_hand(logits, corpus.dev, corpus.vocabulary).items():
        np.testing.assert_allclose(found[f"dev_{name}"], [value], rtol=1e-5)
