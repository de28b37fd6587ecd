"""Write readings as a self-contained HTML page that shows each word's skip and probability."""

import html
import json
import math
from collections.abc import Mapping
from typing import Any

from matplotlib.colors import to_hex

from dynskip_jax.analysis.arcs import Probabilities
from dynskip_jax.analysis.plots import skip_color
from dynskip_jax.analysis.reading import Reading

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #222; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; }
.words { line-height: 2.6; }
.word { display: inline-block; padding: 0 .25em; border: 2px solid transparent; border-radius: .3em;
  line-height: 1.6; white-space: pre; }
.word:focus { outline: none; } .word.here { border-color: #222; }
.told { min-height: 4.6em; padding: .5rem .8rem; background: #f5f5f5; }
.k { display: inline-block; width: 11em; }
.bar { display: inline-block; height: .7em; margin-left: .4em; }
"""
_SCRIPT = """
for (const panel of document.querySelectorAll('section')) {
  const data = JSON.parse(panel.querySelector('script').textContent);
  const words = [...panel.querySelectorAll('.word')], told = panel.querySelector('.told');
  let kept = null;
  function add(parent, kind, text) {
    const part = document.createElement(kind);
    part.textContent = text; parent.append(part); return part;
  }
  function clear() {
    for (const word of words) { word.classList.remove('here'); word.removeAttribute('style'); }
  }
  function show(t) {
    clear(); told.textContent = ''; words[t].classList.add('here');
    const row = data.rows[t], first = add(told, 'p', '');
    add(first, 'b', words[t].dataset.word);
    const verb = data.attention ? ' weighs earlier states, most ' : ' reached ';
    const reached = verb + row.reached + ' back, to ' + row.to;
    add(first, 'span', row.reached ? reached : ' reached nowhere');
    const listed = row.p.map(x => x[0] + ' ' + x[1]).join(', ');
    if (listed) add(first, 'span', ';  p of the ' + data.of + ': ' + listed);
    const all = add(told, 'p', '');
    for (const [k, weight] of row.k) {
      const entry = add(all, 'span', 'k = ' + k + '  ' + weight.toFixed(3));
      const bar = add(entry, 'span', '');
      entry.className = 'k'; bar.className = 'bar';
      bar.style.width = (4 * weight) + 'em'; bar.style.background = data.colors[k];
      const origin = words[t - k], share = Math.max(weight, k === row.reached ? 0.15 : 0);
      const color = data.colors[k] + ' ' + Math.round(80 * Math.sqrt(share)) + '%';
      const mixed = 'color-mix(in srgb, ' + color + ', white)';
      if (origin && share >= 0.01) origin.style.background = mixed;
      if (origin && k === row.reached) origin.style.borderColor = data.colors[k];
    }
  }
  words.forEach((word, t) => {
    word.addEventListener('mouseenter', () => show(t));
    word.addEventListener('focus', () => show(t));
    word.addEventListener('click', () => { kept = kept === t ? null : t; show(t); });
    word.addEventListener('mouseleave', () => { if (kept === null) clear(); else show(kept); });
  });
}
"""


def page_html(
    title: str, panels: Mapping[str, tuple[Reading, Probabilities]], says: Mapping[str, str]
) -> str:
    """Return an HTML page with a panel for each reading, which loads no other files.

    While the mouse is over a word, or the word has the focus, earlier words are coloured by the
    probability (or weight) of a skip to them, and each k is listed below the text. A click keeps
    the display. `panels` have a reading and probabilities from each model; `says` has the
    prediction of each model.
    """
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        "<p>Put the mouse on a word, or click it to keep it: earlier words are coloured by the "
        "probability, or with attention the weight, of their state. The one that was reached has a "
        "frame.</p>",
        *(f"<p>{html.escape(name)}: {html.escape(said)}</p>" for name, said in says.items()),
    ]
    for name, (reading, probabilities) in panels.items():
        words = " ".join(map(_word, reading.words))
        # "<" in the data could end the element or begin a comment.
        data = json.dumps(_data(reading, probabilities), ensure_ascii=False).replace("<", "\\u003c")
        parts += [
            f"<section><h2>{html.escape(name)}</h2>",
            f'<div class="words">{words}</div><div class="told"></div>',
            f'<script type="application/json">{data}</script></section>',
        ]
    return "\n".join([*parts, f"<script>{_SCRIPT}</script></body></html>"]) + "\n"


def _word(word: str) -> str:
    shown = html.escape(word)
    return f'<span class="word" tabindex="0" data-word="{shown}">{shown}</span>'


def _data(reading: Reading, probabilities: Probabilities) -> dict[str, Any]:
    """Return the data for the page's script: each word's skip, and the probability of each k."""
    rows = []
    ks = set()
    for t, k in enumerate(reading.skips):
        # The weight of each k; without probabilities, only that of the choice.
        shown = [[k, 1.0]] if k else []
        if reading.weights is not None:
            weights = reading.weights[t].tolist()
            shown = [[i, round(weight, 4)] for i, weight in enumerate(weights, 1)]
        ks |= {i for i, _ in shown}
        p = [[name, f"{of[t]:.4f}"] for name, of in probabilities.items() if not math.isnan(of[t])]
        origin = reading.words[t - k] if k <= t else "before the text"
        rows.append({"reached": k, "to": origin, "k": shown, "p": p})
    colors = {str(k): to_hex(skip_color(k)) for k in sorted(ks)}
    of = "prediction" if reading.is_of_predictions else "word"
    return {"attention": reading.is_attention, "of": of, "colors": colors, "rows": rows}
