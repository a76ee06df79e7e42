"""Prints the translated pages that are older than their originals.

    python docs/translations.py                        which are
    python docs/translations.py --accept docs/zh/X.md  after a translator has looked

A translated page says in a comment what it translates, and the hash of the text it was made of.
"""

import argparse
import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_COMMENT = re.compile(r"<!-- translates (\S+) sha256 ([0-9a-f]{12}) -->")


def list_pages() -> list[Path]:
    """Return the translated pages."""
    return [ROOT / "README.zh.md", *sorted((ROOT / "docs/zh").glob("*.md"))]


def read_comment(page: Path) -> tuple[Path, str]:
    """Return the original of a page and the hash that its comment has; `ValueError` without one."""
    found = _COMMENT.search(page.read_text("utf-8"))
    if found is None:
        name = page.relative_to(ROOT)
        raise ValueError(f"{name}: no comment <!-- translates PAGE sha256 HASH -->")
    return ROOT / found[1], found[2]


def hash_text(page: Path) -> str:
    """Return the hash of the words of a page: where its lines end does not matter."""
    words = " ".join(page.read_text("utf-8").split())
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def list_outdated() -> list[str]:
    """Return the names of the translated pages whose original has changed since."""
    pages = ((page, *read_comment(page)) for page in list_pages())
    return [
        page.relative_to(ROOT).as_posix()
        for page, original, known in pages
        if hash_text(original) != known
    ]


def accept(page: Path) -> None:
    """Write the hash of today's original into the comment of a page."""
    original, known = read_comment(page)
    text = page.read_text("utf-8")
    page.write_text(text.replace(f"sha256 {known}", f"sha256 {hash_text(original)}"), "utf-8")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accept", nargs="+", default=[], type=Path, metavar="PAGE")
    for page in parser.parse_args().accept:
        accept(page.resolve())
    print("\n".join(list_outdated()))


if __name__ == "__main__":
    main()
