"""MkDocs hook: make README.md and the other pages of the root pages of the site, and lead links
there.
"""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "RESULTS.md": "results.md",
    "BENCHMARKS.md": "benchmarks.md",
    "RELIABILITY.md": "reliability.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files, config):
    """Add the repository's own pages, and the citation file."""
    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    for name in ("CITATION.cff", "experiments/colab.ipynb"):  # README links to them
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links to the repository's own pages to the site's, and links to source to the
    reference.
    """
    up = "../" * page.file.src_uri.count("/")
    source = r"\]\((?:\.\./)*dynskip_jax/functional/[\w/]+\.py\)"
    markdown = re.sub(r"\[`(\w+)`" + source, r"[`\1`][dynskip_jax.functional.\1]", markdown)
    markdown = re.sub(source, f"]({up}api/functional.md)", markdown)

    def link(match):
        return f"]({up}{PAGES[match[2]]}" if match[2] in PAGES else match[0]

    return re.sub(r"\]\(((?:\.\./)*)([A-Z]+\.md)", link, markdown)


def on_page_content(html, page, config, files):
    """Mark the flags in code, so that no line is broken at their dashes.

    A page of the reference on which no name is found is refused: nothing else would notice.
    """
    if page.file.src_uri.startswith("api/") and 'id="dynskip_jax.' not in html:
        raise PluginError(f"{page.file.src_uri} documents no name of dynskip_jax")

    def mark(code):
        return re.sub(
            r"(?<![\w-])--?\w[\w-]*(?=[^<>]*<)", r'<span class="flag">\g<0></span>', code[0]
        )

    return re.sub(r"<code>.*?</code>", mark, html, flags=re.DOTALL)
