"""MkDocs hook: make README.md and the other pages of the root pages of the site, and lead links there."""

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
    """Add the repository's own pages, and the citation file."""
    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        # Source files are not part of the site: links to them lead to the reference.
        text = re.sub(
            r"\[`(\w+)`\]\(dynskip_jax/functional/[\w/]+\.py\)",
            r"[`\1`](api/functional.md#dynskip_jax.functional.\1)",
            text,
        )
        text = re.sub(r"\]\(dynskip_jax/functional/[\w/]+\.py\)", "](api/functional.md)", text)
        files.append(File.generated(config, page, content=text))
    # README links to it; the site has it as a file beside its first page.
    files.append(File.generated(config, "CITATION.cff", content=(ROOT / "CITATION.cff").read_text("utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links to the repository's own pages to their place on the site."""
    up = "../" * page.file.src_uri.count("/")

    def link(match):
        return f"]({up}{PAGES[match[2]]}" if match[2] in PAGES else match[0]

    return re.sub(r"\]\(((?:\.\./)*)([A-Z]+\.md)", link, markdown)
