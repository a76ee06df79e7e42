"""Hooks of MkDocs for mkdocs.yml.

A folder in the navigation (`Course: course/`) stands for its pages, index.md first, then by name.
Links to what is not on the site (../recipes/bert.yaml, cron.sh) become their text;
one whose file is missing is a warning, which is an error with --strict. Formulas become MathML,
which browsers draw without a script.
"""

import html
import logging
import os.path
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(?:#[^)]*)?\)")
# What Material asks of the net for its search when a page is opened from disk (npm: iframe-worker
# 1.0.4, MIT licence), and our copy.
_SHIM, _COPY = "https://unpkg.com/iframe-worker/shim", "pictures/iframe_worker.js"
# As the extension arithmatex marks formulas in a line, and of their own.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\(?:\(|\[)(.*?)\\(?:\)|\])</\1>', re.DOTALL)
_LOG = logging.getLogger("mkdocs.hooks.site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of each folder that the navigation names in its place."""
    docs = Path(config.docs_dir)
    for theme in config.nav or ():
        for title, pages in theme.items():
            if isinstance(pages, str) and pages.endswith("/"):
                found = sorted(
                    (docs / pages).glob("*.md"), key=lambda page: (page.stem != "index", page.stem)
                )
                theme[title] = [page.relative_to(docs).as_posix() for page in found]
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page's text without links to files that the site lacks."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def unlink(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link[2]))
        if target.is_relative_to(docs):
            known = files.get_file_from_path(target.relative_to(docs).as_posix())
            if known is None or not known.inclusion.is_excluded():
                return link[0]  # MkDocs checks it
        elif not target.exists():
            _LOG.warning("%s: no file %s", page.file.src_uri, link[2])
        return link[1]

    return _LINK.sub(unlink, markdown)


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its formulas as MathML."""
    del page, config, files

    def draw(formula: re.Match[str]) -> str:
        display = "inline" if formula[1] == "span" else "block"
        return convert(html.unescape(formula[2]).strip(), display=display)

    return _FORMULA.sub(draw, content)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Return the page with the copy of the script that it would load from the net."""
    return output.replace(_SHIM, get_relative_url(_COPY, page.url))


def on_post_template(output: str, *, template_name: str, config: MkDocsConfig) -> str:
    """Return the page 404.html likewise."""
    return output.replace(_SHIM, _COPY)
