"""Write a page with highlighted code that shows from where the tokens of a file are copied."""

import html
import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.token import STANDARD_TYPES

from dynskip_jax.data.vocabularies import CodeToken

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 1rem auto; max-width: 70rem;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
.told { position: sticky; top: 0; min-height: 3em; padding: .5rem .8rem; background: #f5f5f5; z-index: 1;
  border-bottom: 1px solid #ccc; }
.code { font: 14px/1.6 ui-monospace, monospace; overflow-x: auto; counter-reset: line; padding: .5rem 0; }
.line { white-space: pre; scroll-margin: 8rem; min-height: 1.6em; }
.line::before { counter-increment: line; content: counter(line); display: inline-block; width: 3.5em;
  padding-right: 1em; text-align: right; color: #767676; box-sizing: border-box; }
[data-t] { cursor: pointer; border-radius: .2em; }
.copied { border-bottom: 2px solid #f5a623; }
[data-t].here { outline: 2px solid #222; }
[data-t].origin { background: #ffd98a; outline: 2px solid #b36b00; }
button { font: inherit; border: 0; padding: 0; background: none; color: #0645ad; text-decoration: underline;
  cursor: pointer; }
"""
_SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
const told = document.querySelector('.told'), hint = told.textContent;
const parts = new Map();
for (const part of document.querySelectorAll('[data-t]')) {
  const t = Number(part.dataset.t);
  if (!parts.has(t)) parts.set(t, []);
  parts.get(t).push(part);
}
const shown = [...parts.keys()].sort((a, b) => a - b);
let kept = null;
function mark(t, name) { for (const part of parts.get(t) || []) part.classList.add(name); }
function text(t) { return (parts.get(t) || []).map(part => part.textContent).join(''); }
function place(t) {
  const line = parts.get(t)[0].closest('.line');
  return 'line ' + ([...line.parentNode.children].indexOf(line) + 1);
}
function clear() {
  for (const name of ['here', 'origin'])
    for (const part of document.querySelectorAll('.' + name)) part.classList.remove(name);
  told.textContent = hint;
}
function show(t) {
  clear();
  mark(t, 'here');
  const [p, without, share, origin] = data[t];
  const first = document.createElement('b');
  first.textContent = text(t).trim() || 'white space';
  told.replaceChildren(first, ': probability ' + p.toFixed(3) + ', without copying ' + without.toFixed(3));
  if (origin === null || !parts.has(origin)) return;
  mark(origin, 'origin');
  const link = document.createElement('button');
  link.textContent = place(origin);
  link.onclick = () => parts.get(origin)[0].scrollIntoView({ block: 'center', inline: 'nearest' });
  const percent = Math.round(100 * share / p);
  told.append(percent ? '; ' + percent + ' % copied, most from ' : '; the agent went back to ', link);
}
function keep(t) { kept = t; if (t === null) clear(); else show(t); }
for (const [t, own] of parts) for (const part of own) {
  part.addEventListener('mouseenter', () => show(t));
  part.addEventListener('mouseleave', () => keep(kept));
  part.addEventListener('click', () => keep(kept === t ? null : t));
}
document.addEventListener('keydown', event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const t = shown[Math.max(0, shown.indexOf(kept) + step)] ?? kept;
  keep(t);
  parts.get(t)[0].scrollIntoView({ block: 'nearest', inline: 'nearest' });
  event.preventDefault();
});
"""


class TokenReading(NamedTuple):
    """What a model says of a token."""

    probability: float
    without: float  # probability without copying
    copied: float  # part of the probability
    origin: int | None  # index of the token from which most is copied, or to which the agent went back


def code_page(
    title: str, name: str, text: str, tokens: Sequence[CodeToken], readings: Sequence[TokenReading]
) -> str:
    """Return an HTML page with a file's code, which loads no other files.

    While the mouse is over a token, the place is highlighted from which it is copied, and its probability is
    shown with and without copying. A click keeps the display, and the arrow keys move it. Tokens of which
    most is copied are underlined.
    """
    kinds = [""] * len(text)
    for offset, kind, value in get_lexer_for_filename(name, text).get_tokens_unprocessed(text):
        while kind not in STANDARD_TYPES:
            kind = kind.parent
        kinds[offset : offset + len(value)] = [STANDARD_TYPES[kind]] * len(value)
    owners: list[int | None] = [None] * len(text)
    for t, token in enumerate(tokens):
        owners[token.start : token.stop] = [t] * (token.stop - token.start)

    lines, start = [], 0
    for line in text.split("\n"):
        runs = itertools.groupby(range(start, start + len(line)), key=lambda i: (owners[i], kinds[i]))
        lines.append("".join(_span(text, list(run), *what, readings) for what, run in runs))
        start += len(line) + 1
    rows = [
        [round(each.probability, 4), round(each.without, 4), round(each.copied, 4), each.origin]
        for each in readings
    ]
    code = "\n".join(f'<div class="line">{line}</div>' for line in lines)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{HtmlFormatter().get_style_defs(".code")}{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<div class="told" aria-live="polite">Put the mouse on a token, or click it to keep it; the arrow keys go on.
Underlined tokens are mostly copied.</div>
<div class="code">{code}</div>
<script type="application/json" id="data">{json.dumps(rows)}</script>
<script>{_SCRIPT}</script></body></html>
"""


def _span(
    text: str, run: Sequence[int], owner: int | None, kind: str, readings: Sequence[TokenReading]
) -> str:
    """Return the characters of one kind and one token; `owner` is None between tokens."""
    shown = html.escape(text[run[0] : run[-1] + 1])
    if owner is None:
        return f'<span class="{kind}">{shown}</span>' if kind else shown
    reading = readings[owner]
    classes = f"{kind} copied" if reading.copied > 0.5 * reading.probability else kind
    return f'<span data-t="{owner}" class="{classes}">{shown}</span>'
