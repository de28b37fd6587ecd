"""Check that the pages are easy to read: short sentences, common words, a README of limited length."""

import re
from pathlib import Path

import pytest
import textstat

ROOT = Path(__file__).parents[1]
PAGES = [str(page.relative_to(ROOT)) for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]
README_WORDS = 1200
EASE = {"README.md": 50}
EASE_OF_OTHERS = 45


def prose_of(text):
    """Return a page's sentences, without code, tables, headings and pictures.

    A span of code and a number count as one short word each: textstat takes the point of 0.5 for the end of a
    sentence. A paragraph or list item ends a sentence.
    """
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(#|\||:::|    options:|      show_| *\[?!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\d+(?:[.,]\d+)*", "12", text).replace("et al.", "et al")
    text = re.sub(r"^ *(?:[*-]|12\.) ", "\n\n", text, flags=re.MULTILINE)
    parts = [" ".join(part.split()).strip("* ") for part in re.split(r"\n\s*\n", text)]
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)


def words_of(text):
    """Return all words of a page, including those of code and tables."""
    return [word for word in text.split() if re.search(r"\w", word)]


def test_code_tables_and_numbers_are_left_out():
    text = (
        "# Title\n\nIt *takes* `--flag x` 0.5 s:\n\n```sh\nrun it\n```\n\n"
        "* one [link](there.md)\n* two\n\n| a | b |\n"
    )
    assert prose_of(text) == "It *takes* code 12 s:. one link. two."


@pytest.mark.parametrize("page", PAGES)
def test_page_is_easy_to_read(page):
    ease = textstat.flesch_reading_ease(prose_of((ROOT / page).read_text(encoding="utf-8")))
    assert ease >= EASE.get(page, EASE_OF_OTHERS)


def test_readme_is_short():
    assert len(words_of((ROOT / "README.md").read_text(encoding="utf-8"))) <= README_WORDS
