"""The pages that people read, and what stands in them: blocks of code, headings, links, code in the text."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
"""The pages whose every block is run or read by a test."""
LINKED = [*PAGES, *sorted((ROOT / "deploy").rglob("*.md")), ROOT / "CHANGELOG.md"]
"""The pages whose links are followed."""


class Block(NamedTuple):
    """One block of code: ``info`` is what stands behind its fence, the language first; none for an indented one."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def place(self) -> str:
        return f"{named(self.page)}:{self.line}"


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def _inline(page: Path) -> Iterator[Token]:
    for token in _tokens(page):
        yield from token.children or ()


def blocks(page: Path, info: str | None = None) -> list[Block]:
    """List the blocks of a page in their order, or those with one info."""
    found = [
        Block(page, (token.map or [0])[0] + 1, " ".join(token.info.split()), token.content)
        for token in _tokens(page)
        if token.type in {"fence", "code_block"}
    ]
    return [block for block in found if info is None or block.info == info]


def all_blocks(*infos: str) -> list[Block]:
    """List the blocks with one of these infos, of all pages."""
    return [block for page in PAGES for block in blocks(page) if block.info in infos]


def commands(block: Block) -> list[str]:
    """List the command lines of a block, those that go on behind a backslash put together."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def queries(text: str) -> list[str]:
    return [query.strip() for query in text.split(";") if query.strip()]


def section(page: Path, title: str) -> str:
    """Give the text of a section, with the sections below it."""
    text = page.read_text(encoding="utf-8")
    _before, found, rest = text.partition(f"\n## {title}\n")
    assert found, f"{named(page)} has no section {title}"
    return rest.partition("\n## ")[0]


def anchors(page: Path) -> set[str]:
    """Name the anchors of a page's headings as git hosts make them."""
    seen: Counter[str] = Counter()
    found = set()
    tokens = _tokens(page)
    for opening, heading in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        title = "".join(child.content for child in heading.children or () if child.type in {"text", "code_inline"})
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    """List what the links of a page lead to."""
    return [str(token.attrs["href"]) for token in _inline(page) if token.type == "link_open"]


def code_in_text(page: Path) -> list[str]:
    """List the pieces of code inside of a page's text and tables."""
    return [token.content for token in _inline(page) if token.type == "code_inline"]
