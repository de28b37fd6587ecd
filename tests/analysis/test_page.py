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
    """Parsed page, as a browser would read it: its words, its data, and the addresses it would load."""

    def __init__(self, text):
        super().__init__()
        self.words, self.data, self.links, self.tags, self._kind = [], [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action")]
        self._kind = given.get("type") if tag == "script" else None
        if given.get("class") == "word":
            self.words.append(given["data-word"])

    def handle_data(self, data):
        if self._kind == "application/json":
            self.data.append(json.loads(data))
            self._kind = None


def test_a_page():
    agent = Reading(WORDS, [0, 1, 2, 2], weights=WEIGHTS), {"lstm": [math.nan, 0.5, 0.25, 0.125]}
    attention = Reading(WORDS, [1, 2, 1, 2], weights=WEIGHTS, is_attention=True), {}
    text = page_html("T & t", {"dynamic:2": agent, "attention:2": attention}, {"lstm": "next <eos>"})
    page = Page(text)
    assert page.words == WORDS * 2
    assert page.links == [] and not re.search(r"https?:|@import|url\(", text)
    assert "b" not in page.tags and page.tags.count("section") == 2
    assert "T &amp; t" in text and "lstm: next &lt;eos&gt;" in text
    first, second = page.data
    assert (first["attention"], second["attention"]) == (False, True)
    assert [row["reached"] for row in first["rows"]] == [0, 1, 2, 2]
    assert [row["to"] for row in first["rows"]] == ["a", "a", "a", WORDS[1]]
    assert first["rows"][1]["k"] == [[1, 0.25], [2, 0.75]]
    assert first["rows"][0]["p"] == [] and first["rows"][2]["p"] == [["lstm", "0.2500"]]
    assert second["rows"][0]["to"] == "before the text"
    assert first["colors"] == second["colors"] and first["colors"].keys() == {"1", "2"}


def test_without_weights_the_choice_itself_is_shown():
    reading = Reading(["a", "b", "c"], [0, 0, 2], is_of_predictions=True)
    (data,) = Page(page_html("T", {"fixed:2": (reading, {})}, {})).data
    assert [row["k"] for row in data["rows"]] == [[], [], [[2, 1.0]]]
    assert data["of"] == "prediction"
