"""Check the HTML page: it loads nothing, shows words as text, and contains each k with its weight as data."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np

from dynskip_jax.analysis.page import page_html
from dynskip_jax.analysis.reading import Reading

WORDS = ["a", "</script><b>", '"q"', "日本"]
WEIGHTS = np.array([[1, 0], [0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])


class Page(HTMLParser):
    """Page as a browser would read it: its words, its data, and the names of its elements."""

    def __init__(self, text):
        super().__init__()
        self.words, self.data, self.tags, self._is_data = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self._is_data = given.get("type") == "application/json"
        if given.get("class") == "word":
            self.words.append(given["data-word"])

    def handle_data(self, data):
        if self._is_data:
            self.data.append(json.loads(data))
            self._is_data = False


def test_a_page():
    agent = Reading(WORDS, [0, 1, 2, 2], weights=WEIGHTS), {"lstm": [math.nan, 0.5, 0.25, 0.125]}
    attention = Reading(WORDS, [1, 2, 1, 2], weights=WEIGHTS, is_attention=True), {}
    without = Reading(WORDS, [0, 0, 2, 0], is_of_predictions=True), {}
    panels = {"dynamic:2": agent, "attention:2": attention, "fixed:2": without}
    text = page_html("T & t", panels, {"lstm": "next <eos>"})
    page = Page(text)
    assert page.words == WORDS * 3
    assert not re.search(r"https?:|@import|url\(|\b(src|href|action)=", text)
    assert "b" not in page.tags and page.tags.count("section") == 3
    assert "T &amp; t" in text and "lstm: next &lt;eos&gt;" in text
    first, second, third = page.data
    assert [of["attention"] for of in page.data] == [False, True, False]
    assert [row["reached"] for row in first["rows"]] == [0, 1, 2, 2]
    assert [row["to"] for row in first["rows"]] == ["a", "a", "a", WORDS[1]]
    assert first["rows"][1]["k"] == [[1, 0.25], [2, 0.75]]
    assert first["rows"][0]["p"] == [] and first["rows"][2]["p"] == [["lstm", "0.2500"]]
    assert second["rows"][0]["to"] == "before the text"
    assert first["colors"] == second["colors"] and first["colors"].keys() == {"1", "2"}
    # Without weights the choice itself is shown.
    assert [row["k"] for row in third["rows"]] == [[], [], [[2, 1.0]], []]
    assert (second["of"], third["of"]) == ("word", "prediction")
