"""MkDocs hook: README.md and its like become pages of the site, and links to them lead there."""

import re
from pathlib import Path

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
    """Adds the repository's own pages, and the citation file."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"\]\(docs/", "](", text)))
    # README links to it; the site has it as a file beside its first page.
    files.append(File.generated(config, "CITATION.cff", content=(ROOT / "CITATION.cff").read_text("utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Leads links to the repository's own pages to their place on the site."""
    up = "../" * page.file.src_uri.count("/")

    def link(match):
        return f"]({up}{PAGES[match[2]]}" if match[2] in PAGES else match[0]

    return re.sub(r"\]\(((?:\.\./)*)([A-Z]+\.md)", link, markdown)
