"""Read the pages of the documentation, and run their code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def code_of(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def run_code(page, /, *codes, **names):
    """Run `codes`, or all code of `page`, with the given names, and return all names."""
    names.setdefault("__name__", Path(page).stem)
    for code in codes or code_of(page):
        exec(compile(code, page, "exec"), names)
    return names


def anchor_of(heading):
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def tables_of(page):
    """Return the anchor above each table of a page, its headings, and its rows without marks."""
    found, anchor = [], ""
    parts = re.split(r"^(#.*|(?:\|.*\n)+)", text_of(page), flags=re.MULTILINE)
    for part in parts:
        if part.startswith("#"):
            anchor = anchor_of(part.lstrip("# "))
        elif part.startswith("|"):
            lines = re.sub(r"\*\*|`", "", part).splitlines()
            headings, _, *rows = (
                [cell.strip() for cell in line.split("|")[1:-1]] for line in lines
            )
            found.append((anchor, headings, rows))
    return found
