"""Write HTML pages that load no other files."""

import html

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 1rem auto; padding: 0 1rem; }
pre, td { font: 14px/1.6 ui-monospace, monospace; }
pre { overflow-x: auto; }
th, td { padding: 0 1rem 0 0; text-align: left; }
img { max-width: 100%; }
:target { outline: 2px solid #b36b00; background: #ffd98a; }
"""


def html_page(title: str, body: str, style: str = "") -> str:
    """Return a page with a heading; `body` is HTML, `style` is CSS for it."""
    title = html.escape(title)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}{_STYLE}</style></head>
<body><h1>{title}</h1>
{body}</body></html>
"""
