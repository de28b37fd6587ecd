"""The command `explain`: write a page that shows from where the tokens of a file are copied."""

import contextlib
import html as markup
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pygments.formatters import HtmlFormatter
from pygments.token import STANDARD_TYPES
from tyro.conf import Positional, arg

from dynskip_jax.data.source_code import lexed
from dynskip_jax.data.vocabularies import CodeToken
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.code.reading import (
    code_before,
    names_of_numbers,
    place,
    predictions,
    read_code_file,
)
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.storage.files import check_new, write_atomically
from dynskip_jax.storage.folder import file_name
from dynskip_jax.terminal.console import say
from dynskip_jax.terminal.messages import printable, shown

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
.told { position: sticky; top: 0; min-height: 3em; padding: .5rem .8rem; background: #eee; }
.code { font: 14px/1.6 ui-monospace, monospace; overflow-x: auto; }
.line { white-space: pre; min-height: 1.6em; counter-increment: line; }
.line::before { content: counter(line); display: inline-block; width: 2.5em; margin-right: 1em;
  text-align: right; color: #767676; }
[data-t] { cursor: pointer; }
.name, #all:checked ~ .code .copied { border-bottom: 2px solid #f5a623; }
.here { outline: 2px solid #222; } .origin { outline: 2px solid #b36b00; background: #ffd98a; }
"""
_SCRIPT = """
const told = document.querySelector('.told'), code = document.querySelector('.code');
const rows = JSON.parse(document.getElementById('rows').textContent);
let kept;
function mark(t, name) {
  for (const part of code.querySelectorAll('.' + name)) part.classList.remove(name);
  for (const part of code.querySelectorAll(`[data-t="${t}"]`)) part.classList.add(name);
}
function show(t) {
  const { said, origin } = rows[t] ?? {};
  mark(t, 'here'); mark(origin, 'origin');
  told.textContent = said;
}
code.addEventListener('mouseover', event => show(event.target.dataset.t ?? kept));
code.addEventListener('click', event => show(kept = event.target.dataset.t));
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
    rows = _rows(trained, text, tokens)
    title = f"{name}: {trained.name}, seed {trained.seed}"
    page = code_page(title, name, text, tokens, rows)
    with run.warned() if html is None else contextlib.nullcontext():
        path = html or run.run_dir / "plots" / file_name(f"explain-{name}.html")
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, page)
        say(f"page: {path}")


def _rows(trained: Trained, text: str, tokens: Sequence[CodeToken]) -> list[dict]:
    """Return what the page shows of each token: `said`, `is_copied` and perhaps `origin`."""
    numbers = trained.vocabulary.number(tokens)
    names = names_of_numbers(trained.vocabulary, tokens)
    ids = iter(trained.vocabulary.encode(numbers).tolist())
    rows: list[dict] = []
    for part in predictions(trained, tokens):
        # The last part also predicts what follows the file, for which there is no token.
        for t, token in zip(range(len(part.probs)), ids, strict=False):
            share, k = part.copied(t, token)
            p = float(part.probs[t, token])
            percent = share / max(p, 1e-30)
            without = float(part.probs_without[t, token])
            said = f"probability {p:.3f}, without copying {without:.3f}"
            row = {"is_copied": percent > 0.5}
            if percent < 0.01 and part.copying is not None:
                k = int(part.copying[t].argmax()) + 1  # what the agent would rather have copied
            if len(names.get(numbers[len(rows)], ())) > 1:
                said += "; to the model it is one with other names of this file"
            elif 0 < k <= len(rows):
                row["origin"] = len(rows) - k
                line, _ = place(text, tokens[row["origin"]].start)
                if percent >= 0.01:
                    said += f"; {percent:.0%} copied, most from line {line}"
                else:
                    said += f"; the agent went back mostly to line {line}"
            rows.append(row | {"said": said})
    return rows


def code_page(
    title: str, name: str, text: str, tokens: Sequence[CodeToken], rows: Sequence[dict]
) -> str:
    """Return an HTML page with highlighted code, which loads no other files.

    `rows` say of each token what is shown while the mouse is over it, or after a click, whether it
    is a copy (`is_copied`), and which other token is marked (`origin`). Copied names are
    underlined, and other copies if the reader asks for them.
    """
    # For each character its kind and its token: lexer and model cut a text differently.
    kinds = [""] * len(text)
    for start, kind, part in lexed(name, text):
        kinds[start : start + len(part)] = [STANDARD_TYPES.get(kind, "")] * len(part)
    owners: list[int | None] = [None] * len(text)
    for t, token in enumerate(tokens):
        owners[token.start : token.stop] = [t] * (token.stop - token.start)
        of_token = text[token.start : token.stop].strip() or token.text
        rows[t]["said"] = f"{shown(of_token)}: {rows[t]['said']}"
    start = 0
    lines = []
    for line in text.split("\n"):
        spans = []
        characters = range(start, start + len(line))
        for (t, kind), run in itertools.groupby(characters, lambda i: (owners[i], kinds[i])):
            part = "".join(text[i] for i in run)
            classes = kind
            # An underlined indentation looks like a fault.
            if t is not None and rows[t]["is_copied"] and not part.isspace():
                classes += " copied name" if tokens[t].is_name else " copied"
            of_token = "" if t is None else f' data-t="{t}"'
            visible = markup.escape("\t".join(map(printable, part.split("\t"))))
            spans.append(f'<span class="{classes}"{of_token}>{visible}</span>')
        lines.append(f'<div class="line">{"".join(spans)}</div>')
        start += len(line) + 1
    title = markup.escape(printable(title))
    # A `<` inside a script could end it.
    data = json.dumps(rows, ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{HtmlFormatter().get_style_defs(".code")}{_STYLE}</style></head>
<body><h1>{title}</h1>
<p>Put the mouse on a token, or click it to keep it: the place from which it is copied is marked.
Underlined names are mostly copied. Where the model copies a wrong token, the right one is less
probable than without copying.</p>
<input type="checkbox" id="all"><label for="all"> Underline all copied tokens</label>
<div class="told" aria-live="polite">No token is chosen yet.</div>
<div class="code">{"".join(lines)}</div>
<script type="application/json" id="rows">{data}</script><script>{_SCRIPT}</script></body></html>
"""
