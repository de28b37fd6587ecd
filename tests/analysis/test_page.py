"""Check the HTML page: it loads nothing, shows words as text, and contains each k with its weight as data."""

import html
import json
import math
import re

import numpy as np

from dynskip_jax.analysis.page import page_html
from dynskip_jax.analysis.reading import Reading

WORDS = ["a", "</script><b>", '"q"', "日本"]
WEIGHTS = np.array([[1, 0], [0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])


def test_a_page():
    agent = Reading(WORDS, [0, 1, 2, 2], weights=WEIGHTS), {"lstm": [math.nan, 0.5, 0.25, 0.125]}
    attention = Reading(WORDS, [1, 2, 1, 2], weights=WEIGHTS, is_attention=True), {}
    without = Reading(WORDS, [0, 0, 2, 0], is_of_predictions=True), {}
    panels = {"dynamic:2": agent, "attention:2": attention, "fixed:2": without}
    text = page_html("T & t", panels, {"lstm": "next <eos>"})
    assert [*map(html.unescape, re.findall('data-word="(.*?)"', text))] == WORDS * 3
    assert not re.search(r"https?:|@import|url\(|\b(src|href|action)=", text)
    assert "<b>" not in text and text.count("<section>") == 3
    assert "T &amp; t" in text and "lstm: next &lt;eos&gt;" in text
    data = re.findall('<script type="application/json">(.*?)</script>', text)  # as browsers find its end
    first, second, third = map(json.loads, data)
    assert [of["attention"] for of in (first, second, third)] == [False, True, False]
    assert [row["reached"] for row in first["rows"]] == [0, 1, 2, 2]
    assert [row["to"] for row in first["rows"]] == ["a", "a", "a", WORDS[1]]
    assert first["rows"][1]["k"] == [[1, 0.25], [2, 0.75]]
    assert first["rows"][0]["p"] == [] and first["rows"][2]["p"] == [["lstm", "0.2500"]]
    assert second["rows"][0]["to"] == "before the text"
    assert first["colors"] == second["colors"] and first["colors"].keys() == {"1", "2"}
    # Without weights the choice itself is shown.
    assert [row["k"] for row in third["rows"]] == [[], [], [[2, 1.0]], []]
    assert (second["of"], third["of"]) == ("word", "prediction")
