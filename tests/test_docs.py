"""Check the documentation: its code runs and trains, its commands parse, and its links have
targets.
"""

import doctest
import functools
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import types

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flags import flags_of
from flax import nnx
from pages import ROOT, anchor_of, code_of, run_code, text_of

from dynskip_jax import SkipLSTM, rl
from dynskip_jax import functional as F
from dynskip_jax.config.flags import call

PAGES = [
    str(page.relative_to(ROOT))
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
]
OWN_MODEL = "docs/own_model.md"
# Pages whose code has its own test: agents, own_model and own_pieces below, the others in
# tests/experiments/.
TESTED_APART = (
    "docs/agents.md",
    "docs/experiments/code.md",
    *(f"docs/own_{of}.md" for of in ("model", "pieces", "task", "analysis")),
)


# --- Code ---


@pytest.mark.parametrize("page", PAGES)
def test_code_is_of_a_kind_that_is_tested(page):
    """Python code and sessions run, `sh` is parsed as commands, and a block without a language is
    no code.
    """
    fences = re.findall(r"^ *```(.*)$", text_of(page), re.MULTILINE)
    assert len(fences) % 2 == 0 and set(fences[1::2]) <= {""}
    assert set(fences[::2]) <= {"", "python", "pycon", "sh"}
    for session in code_of(page, "pycon"):
        example = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
        assert not doctest.DocTestRunner().run(example).failed


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in TESTED_APART and code_of(page)]
)
def test_the_code_of_a_page_runs(page):
    """The code is traced as a whole, because op by op JAX would compile each operation
    separately.
    """
    jax.eval_shape(lambda: run_code(page) and None)


def example_of_an_agent():
    """Return the first example of the page on own models: definitions, and the training."""
    (code, *_) = code_of(OWN_MODEL)
    start = code.index("for step, key in")
    return code[:start], code[start:]


def test_a_step_of_the_example_of_an_agent_is_traced():
    definitions, _ = example_of_an_agent()

    def step(key):
        names = run_code(OWN_MODEL, definitions)
        names["train_step"](names["model"], names["optimizer"], key, F.Policy("sample"))
        return names["pointers"](key, 10)

    x, lengths, y = jax.eval_shape(step, jax.random.key(0))
    assert (x.shape, lengths.shape, y.shape) == ((10, 9, 13), (10,), (10,))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_agent_of_the_example_solves_its_task_and_a_plain_lstm_does_not(seed):
    definitions, training = example_of_an_agent()
    definitions = definitions.replace("nnx.Rngs(0)", f"nnx.Rngs({10 * seed})")
    training = training.replace("jax.random.key(0)", f"jax.random.key({seed})")
    plain = definitions.replace('F.Dynamic(8, agent="both")', "F.Previous()")
    assert "F.Previous()" in plain
    assert run_code(OWN_MODEL, definitions, training)["accuracy"] >= 0.99
    assert run_code(OWN_MODEL, plain, training)["accuracy"] < 0.95


@pytest.mark.slow
def test_the_page_on_own_models_runs():
    page = OWN_MODEL
    definitions, _ = example_of_an_agent()
    _, *codes = code_of(page)
    names = run_code(page, definitions, *[code for code in codes if "import torch" not in code])
    assert names["out"].h.shape == names["replayed"].h.shape == (16, 12, 16)
    assert names["half"].decisions[0].action.max() <= 3
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(names["gradient"].transition))
    pytest.importorskip("torch")
    run_code(page, *[code for code in codes if "import torch" in code], **names)


def codes_of_agents():
    """Return the code of the page on agents: a loop of one's own, and recipes for libraries."""
    codes = code_of("docs/agents.md")
    recipes = [code for code in codes if re.search("memorax|nnx_ppo", code)]
    return [code for code in codes if code not in recipes], recipes


def test_the_loop_of_the_page_on_agents_is_traced():
    own, _ = codes_of_agents()
    jax.eval_shape(lambda: run_code("docs/agents.md", *own) and None)


@pytest.mark.slow
def test_the_loop_of_the_page_on_agents_solves_its_task_and_replays_its_choices():
    own, _ = codes_of_agents()
    longer = [code.replace("updates = 2", "updates = 50") for code in own]
    assert longer != own
    names = run_code("docs/agents.md", *longer)
    assert np.mean(names["returns"][-5:]) > 5.5  # of 6
    np.testing.assert_allclose(names["log_ratio"], 0, atol=1e-4)
    np.testing.assert_array_equal(names["replayed"].action, names["rollout"].choice)


def test_the_recipes_for_other_libraries_act_and_reset(monkeypatch):
    """The libraries' base classes have stand-ins: what is tested is how recipes call the layers."""
    module = types.ModuleType("stand-in")
    module.SequenceModel = flax.linen.Module
    module.StatefulModule = nnx.Module
    module.StatefulModuleOutput = lambda state, output, *_: (state, output)
    for name in ("memorax.networks.sequence_models.sequence_model", "nnx_ppo.networks.types"):
        monkeypatch.setitem(sys.modules, name, module)
    own, recipes = codes_of_agents()
    (first, *_) = own
    x = jnp.ones((2, 3, 4))
    begins = jnp.array([[True, False, True]] * 2)
    skip = F.Dynamic(5, agent="both", mix=1.0)

    def run():
        names = run_code("docs/agents.md", first, *recipes)
        memory = names["SkipMemory"](8, skip)
        carry = memory.initialize_carry(None, (2, 4))
        (_, by_rows), _ = memory.init_with_output(jax.random.key(0), x, begins, carry)
        module = names["SkipModule"](4, 8, skip, rngs=nnx.Rngs(0))
        state, h = module(module.initialize_state(2), x[:, 0])
        reset = jax.vmap(module.reset_state)(state)
        return by_rows, h, state, reset

    by_rows, h, state, reset = jax.eval_shape(run)
    assert by_rows.shape == (2, 3, 8) and h.shape == (2, 8)
    assert state == reset


def test_an_agent_of_ones_own_samples_replays_and_learns():
    with jax.numpy_rank_promotion("allow"):  # as users have it
        skip = run_code("docs/own_pieces.md")["LinearAgent"]()
    rnn = SkipLSTM(4, 3, skip=skip, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (8, 12, 4))

    @nnx.jit
    def read(rnn, actions):
        def loss(rnn):
            out = rnn(x, actions=actions)
            return rl.agent_loss(out, jnp.arange(8.0)), out

        return nnx.grad(loss, has_aux=True)(rnn)

    sampled = nnx.jit(SkipLSTM.__call__)(rnn, x, rngs=jax.random.key(0))
    gradient, replayed = read(rnn, [sampled.decisions[0].action])
    for name in ("action", "log_prob", "entropy"):
        of_both = [getattr(out.decisions[0], name) for out in (sampled, replayed)]
        np.testing.assert_allclose(*of_both, rtol=1e-5)
    assert {*np.unique(sampled.decisions[0].action).tolist()} == {1, 2, 3, 4, 5}
    agent = gradient["cells"][0]["agent"]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(agent))


# --- Commands ---


def commands_of(page):
    """Return a page's commands: those of `sh` blocks, and inline `python -m` ones without
    placeholders.
    """
    blocks = "\n".join(code_of(page, "sh"))
    lines = [
        part for line in blocks.splitlines() for part in re.sub(r" +# .*", "", line).split(" && ")
    ]
    spans = re.findall(r"`(python -m (?:experiments|benchmarks)\.[^`]*)`", text_of(page))
    spans = [" ".join(span.split()) for span in spans]
    return [
        *filter(str.strip, lines),
        *(span for span in spans if not re.search(r"…|λ|NAME|MODEL|SEED|<", span)),
    ]


def read_command(line):
    """Parse `line`, such as `… -m module arguments`, as the module would."""
    parts = re.split(" [<|] ", line)
    words = shlex.split(next((part for part in parts if " -m " in part), parts[0]))
    if "-m" not in words:
        assert words[0].rpartition("/")[2] in {"pip", "ruff", "mkdocs", "run", "check_wheel"}, line
        return
    module, *arguments = words[words.index("-m") + 1 :]
    if module in ("pytest", "venv", "pip", "build", "experiments"):
        return
    package, _, name = module.rpartition(".")
    if package == "experiments":
        flags_of(name, arguments)
        return
    if module == "benchmarks.transformer" and not importlib.util.find_spec("torch"):
        return  # the extra `bench` has PyTorch
    found = importlib.import_module(module)
    if started := re.findall(r"^    run_command\((\w+)\)$", inspect.getsource(found), re.MULTILINE):
        function = functools.wraps(getattr(found, *started))(lambda **values: values)
        call(function, line, arguments)
        return
    if not hasattr(found, "call"):  # a package that is run
        found = importlib.import_module(f"{module}.__main__")

    def read(function, *_):
        raise StopIteration(
            call(functools.wraps(function)(lambda **values: values), line, arguments)
        )

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StopIteration):
        patch.setattr(found, "call", read)
        found.main()


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_commands_are_read(page):
    for line in commands_of(page):
        read_command(line)


# --- Links ---


def without_blocks(page):
    return re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def anchors_of(path):
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(path), re.MULTILINE)
    return {*map(anchor_of, headings)}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", without_blocks(page))):
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


def test_the_tests_that_reliability_names_exist_and_are_said_to_be_slow_if_they_are():
    for path, slow in re.findall(r"`(tests/[\w/]+\.py)`( \(slow\))?", text_of("RELIABILITY.md")):
        code = text_of(path)
        assert "def test_" in code and (not slow or "mark.slow" in code), path


# --- The reference ---


# Packages of which users call no name: the docstrings of their modules are enough.
WITHOUT_A_PAGE = {"cli", "commands", "experiments", "storage", "terminal"}


def test_the_reference_has_every_package_that_users_call():
    """A page lists a package as a whole or by module; an exported name of a module has its own
    entry.
    """
    folders = [path.parent for path in (ROOT / "dynskip_jax").glob("*/__init__.py")]
    # The next test has `functional`.
    for folder in folders:
        if folder.name in {"functional", *WITHOUT_A_PAGE}:
            continue
        page = ROOT / "docs" / "api" / f"{folder.name}.md"
        listed = re.findall(r"^::: (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        package = f"dynskip_jax.{folder.name}"
        modules = sorted(
            path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")
        )
        if package in listed:
            names = vars(importlib.import_module(package))
            expected = {package} | {
                f"{package}.{name}.{name}" for name in modules if callable(names.get(name))
            }
        else:
            expected = {f"{package}.{module}" for module in modules}
        assert set(listed) == expected and len(listed) == len(expected)


def test_the_reference_has_every_name_of_functional_once():
    """Its pages list names by kind; a function that hides its module has its own entry."""
    pages = "".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")
    )
    listed = re.findall(r"\w+", " ".join(re.findall(r"members: \[(.*?)\]", pages, re.DOTALL)))
    listed += re.findall(r"^::: dynskip_jax\.functional\.\w+\.(\w+)$", pages, re.MULTILINE)
    exported = {name for name, it in vars(F).items() if callable(it) and not name.startswith("_")}
    assert set(listed) == exported and len(listed) == len(exported)
