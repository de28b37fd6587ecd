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
