"""Check the documentation: its code runs and trains, its commands parse, and its links have targets."""

import doctest
import functools
import importlib
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import and_slow

from dynskip_jax import cli
from dynskip_jax import functional as F
from dynskip_jax.cli import TOOLS, read_training
from dynskip_jax.config import call
from dynskip_jax.experiment import find_experiment

ROOT = Path(__file__).parents[1]
PAGES = [str(page.relative_to(ROOT)) for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]
# Pages whose code has its own test, below or in the named file. The code of all other pages only has to run.
TESTED_APART = {
    "README.md": "tests/test_docs.py",
    "docs/own_model.md": "tests/test_docs.py",
    "docs/own_pieces.md": "tests/test_docs.py",
    "docs/own_task.md": "tests/experiments/test_own_task.py",
    "docs/own_analysis.md": "tests/experiments/test_own_task.py",
}
PEERS = ("torch",)  # code that imports one of them is skipped if it is not installed


def code_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def names_of(page, *codes):
    """Run `codes`, or all code of `page`, and return the names that it defines."""
    names = {"__name__": Path(page).stem}
    for code in codes or code_of(page):
        exec(compile(code, page, "exec"), names)
    return names


# --- Code ---


@pytest.mark.parametrize("page", PAGES)
def test_code_is_of_a_kind_that_is_tested(page):
    """Python code and sessions run, `sh` is parsed as commands, and a block without a language is no code."""
    fences = re.findall(r"^ *```(.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0 and set(fences[1::2]) <= {""}
    assert set(fences[::2]) <= {"", "python", "pycon", "sh"}


@pytest.mark.parametrize("page", PAGES)
def test_sessions_print_what_they_show(page):
    for session in re.findall(r"```pycon\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
        example = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
        assert not doctest.DocTestRunner().run(example).failed


def test_pages_tested_apart_are_named_in_their_tests():
    for page, test in TESTED_APART.items():
        assert code_of(page)
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8").replace("TESTED_APART", "")


@pytest.mark.parametrize("page", [page for page in PAGES if page not in TESTED_APART and code_of(page)])
def test_the_code_of_a_page_runs(page):
    """The code is traced as a whole, because op by op JAX would compile each operation separately."""
    jax.eval_shape(lambda: names_of(page) and None)


@pytest.fixture(scope="module")
def own_pieces():
    return names_of("docs/own_pieces.md")


def readmes_example():
    """Return README's first example in two parts: definitions, and the training."""
    (code, *_) = code_of("README.md")
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 32
    start = code.index("for step, key in")
    return code[:start], code[start:]


@pytest.mark.parametrize("mode", ["soft", "sample"])
def test_a_step_of_the_readmes_example_is_traced(mode):
    """This test only traces a training step; the slow test below trains the model."""
    definitions, _ = readmes_example()

    def step(key):
        names = names_of("README.md", definitions)
        names["train_step"](names["model"], names["optimizer"], key, F.Policy(mode))
        return names["pointers"](key, 10)

    x, lengths, y = jax.eval_shape(step, jax.random.key(0))
    assert (x.shape, lengths.shape, y.shape) == ((10, 9, 13), (10,), (10,))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_readmes_agent_solves_its_task_and_a_plain_lstm_does_not(seed):
    definitions, training = readmes_example()
    definitions = definitions.replace("nnx.Rngs(0)", f"nnx.Rngs({10 * seed})")
    training = training.replace("jax.random.key(0)", f"jax.random.key({seed})")
    plain = definitions.replace("F.Dynamic(8, mix=0.5)", "F.Previous()")
    assert "F.Previous()" in plain
    assert names_of("README.md", definitions, training)["accuracy"] >= 0.99
    assert names_of("README.md", plain, training)["accuracy"] < 0.95


def peer_of(code):
    """Return which library of PEERS `code` imports, or None."""
    return next((peer for peer in PEERS if re.search(rf"^import {peer}\b", code, re.MULTILINE)), None)


@pytest.fixture(scope="module")
def own_model():
    """Return the names that the page on own models defines, without code that needs other libraries."""
    page = "docs/own_model.md"
    return names_of(page, *[code for code in code_of(page) if peer_of(code) is None])


@pytest.mark.slow
def test_the_page_on_own_models_runs(own_model):
    names = own_model
    assert np.mean(names["losses"][-10:]) < 0.7 * names["losses"][0]
    for second, first in (("replayed", "out"),):
        assert names[first].h.shape == names[second].h.shape == (16, 12, 16)
    assert names["half"].decisions[0].action.max() <= 3
    assert names["written"].shape == (2, 20) and set(np.unique(names["written"])) <= set(range(6))
    assert names["message"] == "expected a carry with K = 5 slots, got one with 3"
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(names["gradient"].transition))


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
def test_the_page_on_own_models_runs_with(peer, own_model):
    pytest.importorskip(peer)
    (code,) = [code for code in code_of("docs/own_model.md") if peer_of(code) == peer]
    exec(compile(code, "docs/own_model.md", "exec"), own_model)


def test_a_transition_of_ones_own_trains_in_a_stack(own_pieces):
    errors = own_pieces["errors"]
    assert np.mean(errors[-10:]) < 0.35 * errors[0]


@pytest.mark.parametrize(
    ("skip", "depth_skip"),
    and_slow(
        itertools.product(("dynamic", "own"), (F.ToOutput(gated=True), F.ToInternal())),
        lambda skip, depth_skip: (skip, depth_skip) == ("own", F.ToOutput(gated=True)),
    ),
    ids=str,
)
def test_its_fused_gradients_are_those_of_autodiff(own_pieces, skip, depth_skip):
    skip = {"dynamic": F.Dynamic(5, 0.5), "own": own_pieces["Farthest"](4, 0.5)}[skip]
    recurrence = F.Recurrence(skip, own_pieces["SLSTM"](), depth_skip)

    @jax.jit
    def gradients():
        params = recurrence.init(jax.random.key(0), 4, 6, init=F.Initializers(dtype=jnp.float64))
        x = jax.random.normal(jax.random.key(1), (3, 9, 4))
        below = jax.random.normal(jax.random.key(2), (3, 9, 6))
        zeros = F.zero_state(recurrence.transition, (3, 6), jnp.float64)
        carry = F.initial_carry(jax.random.split(jax.random.key(3), 3), recurrence, zeros)

        def loss(params, implementation):
            settings = dict(below=below, implementation=implementation)
            out = F.unroll(params, carry, x, recurrence, **settings)[1]
            return jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob)

        return [jax.grad(loss)(params, name) for name in ("fused", "reference")]

    with jax.enable_x64(True):
        fused, reference = gradients()
        for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(reference), strict=True):
            assert a.dtype == np.float64
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
            assert np.abs(a).max() > 0


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_its_states_mix_as_those_of_the_library(own_pieces, mix):
    """Regression: gradients were NaN where mix is exactly 0 or 1, as with Skip RNN."""
    own, rng = own_pieces["SLSTM"](), np.random.default_rng(0)

    def theirs(mix, *states):
        state = F.SLSTM().mix_states(mix, *(F.SLSTMState(h, c, jnp.ones_like(m), m) for h, c, m in states))
        return state.h, state.c, state.m + jnp.log(state.n)

    def ours(mix, *states):
        return tuple(own.mix_states(mix, *(own.state(*state) for state in states)))

    def gradients(mix, *states):
        loss = lambda function: lambda *given: sum(jnp.sum(jnp.sin(part)) for part in function(*given))
        return [(f(mix, *states), jax.grad(loss(f), (0, 1, 2))(mix, *states)) for f in (ours, theirs)]

    with jax.enable_x64(True):
        states = (tuple(scale * rng.normal(size=(2, 3)) for scale in (1, 1, 5)) for _ in range(2))
        found, expected = jax.jit(gradients)(np.full((2, 1), mix), *states)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected)


# --- Commands ---


def commands_of(page):
    """Return a page's commands: those of `sh` blocks, and inline `python -m` ones without placeholders."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    lines = [part for line in blocks.splitlines() for part in re.sub(r" +# .*", "", line).split(" && ")]
    spans = re.findall(r"`(python -m (?:experiments|benchmarks)\.[^`]*)`", text)
    spans = [" ".join(span.split()) for span in spans]
    return [*filter(None, lines), *(span for span in spans if not re.search(r"…|λ|NAME|MODEL|SEED|<", span))]


def read_command(line):
    """Parse `line`, such as `… -m module arguments`, as the module would."""
    words = shlex.split(line.partition(" < ")[0])
    if "-m" not in words:
        assert words[0].rpartition("/")[2] in {"pip", "ruff", "mkdocs", "run", "check_wheel"}, line
        return
    module, *arguments = words[words.index("-m") + 1 :]
    if module in ("pytest", "venv", "pip", "build", "experiments"):
        return
    name = module.rpartition(".")[2]
    if module.startswith("experiments.") and name in TOOLS:
        read_only(cli.run_command, name, line, arguments)
        return
    if not module.startswith("experiments."):
        found = importlib.import_module(module)
        if not hasattr(found, "Flags"):  # a package that is run
            found = importlib.import_module(f"{module}.__main__")
        if not hasattr(found, "Flags"):  # its own test reads its flags
            return
        call(found.Flags, line, arguments)  # of benchmarks
        return
    command = find_experiment(module.rpartition(".")[2])
    if arguments and arguments[0] in command.commands:
        read_only(cli.run_command, arguments[0], line, arguments[1:])
    elif "--config" not in arguments:  # that of a run folder exists only after training
        read_training(command, arguments)


def read_only(run, *arguments):
    """Read the flags of a command, without running it."""

    def read(function, prog, arguments, **given):
        call(functools.wraps(function)(lambda **values: None), prog, arguments, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "call", read)
        run(*arguments)


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_commands_are_read(page):
    for line in commands_of(page):
        read_command(line)


@pytest.mark.parametrize("page", PAGES)
def test_extras_exist(page):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / page).read_text(encoding="utf-8")
    for names in re.findall(r"(?:\"\.|dynskip_jax)\[([a-z,]+)\]", text):
        assert set(names.split(",")) <= set(extras), names


# --- Links ---


def without_code(page):
    """Return a page's text without its blocks and spans of code."""
    text = re.sub(
        r"^ *```.*?^ *```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(path):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.is_file() and target.resolve().is_relative_to(ROOT), link
        if anchor.startswith("dynskip_jax."):  # a link into the API reference
            module, _, attribute = anchor.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), link
        elif anchor:
            assert anchor in anchors_of(target), link


# --- The reference ---


def test_the_reference_has_every_package():
    """A page lists a package as a whole or by module.

    An exported name that is also the name of a module has a separate entry.
    """
    for folder in (path.parent for path in (ROOT / "dynskip_jax").glob("*/__init__.py")):
        page = ROOT / "docs" / "api" / f"{folder.name}.md"
        listed = re.findall(r"^::: (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        package = f"dynskip_jax.{folder.name}"
        modules = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("__"))
        if package in listed:
            exported = importlib.import_module(package).__all__
            expected = {package} | {f"{package}.{name}.{name}" for name in exported if name in modules}
        else:
            expected = {f"{package}.{module}" for module in modules}
        assert set(listed) == expected and len(listed) == len(expected)


def test_the_reference_has_every_constant():
    """Constants have no docstrings, so a table in the reference describes them."""
    text = (ROOT / "docs" / "api" / "functional.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([A-Z_]+)`", text))
    assert listed == {name for name in F.__all__ if name.isupper() and not isinstance(getattr(F, name), type)}
    for mode in F.MODES:
        assert f"`{mode}`" in text, mode
