"""The command `explain`: write a page that shows from where the tokens of a file are copied."""

import contextlib
import html as markup
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pygments.formatters import HtmlFormatter
from pygments.token import STANDARD_TYPES
from tyro.conf import Positional, arg

from dynskip_jax.analysis.page import html_page
from dynskip_jax.data.source_code import lexed
from dynskip_jax.data.vocabularies import CodeToken
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.code.reading import (
    code_before,
    place,
    predictions,
    read_code_file,
)
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.storage.files import check_new, write_atomically
from dynskip_jax.storage.folder import file_name
from dynskip_jax.terminal.console import say
from dynskip_jax.terminal.messages import printable

_STYLE = """
pre a { color: inherit; text-decoration: none; }
.copied { border-bottom: 2px solid #f5a623; }
"""
_ABOUT = """
<p>The mouse over a token shows its probability; a click leads to the place from which it is copied.
Underlined names are mostly copied. Where the model copies a wrong token, the right one is less
probable than without copying.</p>
"""

SourceFile = Annotated[str, arg(metavar="FILE")]


def explain(run: FinishedRun, file: Positional[SourceFile], html: Path | None = None) -> None:
    """Write a page that shows from where each token of a file is copied, and its probability.

    Args:
        file: A file of source code; `-` is standard input, as Python.
        html: Where the page is written; by default into the run folder, below `plots`.
    """
    if html is not None:
        check_new(html)
    name, text = read_code_file(file)
    tokens = code_before(name, text, len(text)).tokens
    if not tokens:
        raise UserError(f"{file} has no code: there is nothing to read")
    trained = run.last("code.explain")
    title = f"{name}: {trained.name}, seed {trained.seed}"
    page = code_page(title, name, text, tokens, _said(trained, text, tokens))
    with run.warned() if html is None else contextlib.nullcontext():
        path = html or run.run_dir / "plots" / file_name(f"explain-{name}.html")
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, page)
        say(f"page: {path}")


class _Said(NamedTuple):
    """What the page says of a token."""

    text: str
    is_copied: bool
    origin: int | None = None  # the token from which it is copied


def _said(trained: Trained, text: str, tokens: Sequence[CodeToken]) -> list[_Said]:
    """Return what the page says of each token of a file."""
    ids = iter(trained.vocabulary.encode(trained.vocabulary.number(tokens)).tolist())
    found: list[_Said] = []
    for part in predictions(trained, tokens):
        # The last part also predicts what follows the file, for which there is no token.
        for t, token in zip(range(len(part.probs)), ids, strict=False):
            share, k = part.copied(t, token)
            p = float(part.probs[t, token])
            percent = share / max(p, 1e-30)
            without = float(part.probs_without[t, token])
            said = f"probability {p:.3f}, without copying {without:.3f}"
            origin = None
            if 0 < k <= len(found) and percent >= 0.01:
                origin = len(found) - k
                line, _ = place(text, tokens[origin].start)
                said += f"; {percent:.0%} copied, most from line {line}"
            found.append(_Said(said, percent > 0.5, origin))
    return found


def code_page(
    title: str, name: str, text: str, tokens: Sequence[CodeToken], said: Sequence[_Said]
) -> str:
    """Return an HTML page with highlighted code, which loads no other files.

    Hovering over a token shows its description; a click leads to its origin. Copied names
    are underlined.
    """
    # For each character its kind and its token: lexer and model cut a text differently.
    kinds = [""] * len(text)
    for start, kind, part in lexed(name, text):
        kinds[start : start + len(part)] = [STANDARD_TYPES.get(kind, "")] * len(part)
    owners: list[int | None] = [None] * len(text)
    for t, token in enumerate(tokens):
        owners[token.start : token.stop] = [t] * (token.stop - token.start)
    spans = []
    for (t, kind), run in itertools.groupby(range(len(text)), lambda i: (owners[i], kinds[i])):
        part = [text[i] for i in run]
        visible = markup.escape("".join(c if c in "\n\t" else printable(c) for c in part))
        if t is None:
            spans.append(f'<span class="{kind}">{visible}</span>')
            continue
        classes = f"{kind} copied" if said[t].is_copied and tokens[t].is_name else kind
        link = "" if said[t].origin is None else f' href="#t{said[t].origin}"'
        hint = markup.escape(said[t].text)
        spans.append(f'<a id="t{t}"{link} class="{classes}" title="{hint}">{visible}</a>')
    style = HtmlFormatter().get_style_defs("pre") + _STYLE
    return html_page(printable(title), f"{_ABOUT}<pre>{''.join(spans)}</pre>", style)
