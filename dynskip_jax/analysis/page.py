"""Write readings as a self-contained HTML page that shows the skip and its probability at each word."""

import html
import json
import math
from collections.abc import Mapping
from typing import Any

from matplotlib.colors import to_hex

from dynskip_jax.analysis.arcs import Reading
from dynskip_jax.analysis.plots import skip_color

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #222; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .about { color: #666; }
.words { line-height: 2.6; margin: .8rem 0; }
.word { display: inline-block; position: relative; padding: 0 .25em; margin: 0 .05em; border-radius: .3em;
  cursor: default; line-height: 1.6; white-space: pre; border: 2px solid transparent; min-width: 1.5em;
  text-align: center; }
.word:focus { outline: none; } .word.here { border-color: #222; }
.word small { position: absolute; left: 50%; top: 100%; transform: translateX(-50%); font-size: .7rem;
  line-height: 1; margin-top: 3px; color: #222; }
.told { min-height: 4.6em; padding: .5rem .8rem; background: #f5f5f5; border-radius: .4em; }
.told:empty::before { content: "no word yet"; color: #888; }
.told b { font-weight: 600; }
.bar { position: absolute; left: 6.6em; top: .4em; height: .7em; border-radius: .15em; }
.k { display: inline-block; position: relative; width: 11em; white-space: pre; }
"""
_SCRIPT = """
for (const panel of document.querySelectorAll('section')) {
  const data = JSON.parse(panel.querySelector('script').textContent);
  const words = [...panel.querySelectorAll('.word')], told = panel.querySelector('.told');
  let kept = null;
  function clear() {
    for (const word of words) {
      word.classList.remove('here'); word.style.background = word.style.borderColor = '';
      const small = word.querySelector('small'); if (small) small.remove();
    }
  }
  function line(parent, text, bold) {
    const part = document.createElement(bold ? 'b' : 'span');
    part.textContent = text; parent.append(part); return part;
  }
  function show(t) {
    clear(); told.textContent = '';
    words[t].classList.add('here');
    const row = data.rows[t], first = document.createElement('p');
    line(first, words[t].dataset.word, true);
    line(first, row.reached ? (data.attention ? ' weighs earlier states, most ' : ' reached ')
      + row.reached + ' back, to ' + row.to : ' reached nowhere');
    const listed = row.p.map(x => x[0] + ' ' + x[1]).join(', ');
    if (listed) line(first, ';  p of the ' + data.of + ': ' + listed);
    told.append(first);
    const all = document.createElement('p');
    row.k.forEach(([k, weight]) => {
      const entry = line(all, ''), bar = document.createElement('span');
      entry.className = 'k'; bar.className = 'bar';
      bar.style.width = (4 * weight) + 'em'; bar.style.background = data.colors[k];
      entry.append('k = ' + k + '  ' + weight.toFixed(3), bar);
      const origin = words[t - k];
      if (origin) {
        const share = Math.max(weight, k === row.reached ? 0.15 : 0);
        if (share >= 0.01) origin.style.background = 'color-mix(in srgb, ' + data.colors[k] + ' '
          + Math.round(80 * Math.sqrt(share)) + '%, white)';
        if (k === row.reached) origin.style.borderColor = data.colors[k];
        if (weight >= 0.01 || k === row.reached) {
          const small = document.createElement('small');
          small.textContent = weight.toFixed(2); origin.append(small);
        }
      }
    });
    told.append(all);
  }
  words.forEach((word, t) => {
    word.addEventListener('mouseenter', () => show(t));
    word.addEventListener('focus', () => show(t));
    word.addEventListener('click', () => { kept = kept === t ? null : t; show(t); });
    word.addEventListener('mouseleave', () => { if (kept === null) clear(); else show(kept); });
  });
}
"""


def page_html(title: str, panels: Mapping[str, Reading], says: Mapping[str, str]) -> str:
    """Return an HTML page with one panel for each reading. The page loads no other files.

    While the mouse is over a word, or the word has the focus, earlier words are coloured by the probability
    of a skip to them (with attention, by their weight). Each k is listed below the text with this number. A
    click keeps the display.

    Args:
        title: Title of the page.
        panels: Readings by the name of their panel; there is one for each model and direction.
        says: Prediction of each model by its name, including models without a panel.
    """
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        '<p class="about">Put the mouse on a word, or click it to keep it: earlier words are coloured by how '
        "probable it was, or with attention by how much it weighed, that their state entered here. The one "
        "that was reached has a frame in its colour.</p>",
    ]
    parts += [f"<p>{html.escape(name)}: {html.escape(said)}</p>" for name, said in says.items()]
    for name, reading in panels.items():
        parts.append(f"<section><h2>{html.escape(name)}</h2>")
        words = "".join(
            f'<span class="word" tabindex="0" data-word="{html.escape(word)}">{html.escape(word)}</span> '
            for word in reading.words
        )
        parts.append(f'<div class="words">{words}</div><div class="told"></div>')
        # "<" in the data could end the element or begin a comment.
        data = json.dumps(_data(reading), ensure_ascii=False).replace("<", "\\u003c")
        parts.append(f'<script type="application/json">{data}</script></section>')
    parts.append(f"<script>{_SCRIPT}</script></body></html>")
    return "\n".join(parts) + "\n"


def _data(reading: Reading) -> dict[str, Any]:
    """Return the data for the page's script: the skip of each word, and the probability of each k."""
    rows, ks = [], set()
    for t, k in enumerate(reading.skips):
        weights = [] if reading.weights is None else reading.weights[t].tolist()
        shown = [[i, round(weight, 4)] for i, weight in enumerate(weights, 1)] or ([[k, 1.0]] if k else [])
        ks |= {i for i, _ in shown}
        probabilities = [
            [name, f"{given[t]:.4f}"]
            for name, given in reading.probabilities.items()
            if not math.isnan(given[t])
        ]
        origin = reading.words[t - k] if k <= t else "before the text"
        rows.append({"reached": k, "to": origin, "k": shown, "p": probabilities})
    colors = {str(k): to_hex(skip_color(k)) for k in sorted(ks)}
    of = "prediction" if reading.is_of_predictions else "word"
    return {"attention": reading.is_attention, "of": of, "colors": colors, "rows": rows}
