"""The text of a page as a model reads it: title, paragraphs, links as `[text](URL)`; no menus, no scripts.

lxml's HTML parser gives events, not a tree: trees cost time that grows with the square of what a hostile page is full
of (nesting, attributes), events do not, and the reader may stop at any of them.
"""

import re
import time
from typing import Final
from urllib.parse import urljoin, urlsplit

import msgspec
from lxml import etree

_PIECE: Final = (
    4_096  # in it an end tag that ends nothing is looked for in all that is open: time is looked at after it
)
_MAX_S: Final = 3.0  # what was read until then is the text
_EVENTS_PER_LOOK: Final = 2_000
_MIN_MAIN_CHARS: Final = 200  # a shorter <main> is not what the page is about
_SKIPPED: Final = {
    "script", "style", "noscript", "template", "svg", "math", "iframe", "object", "select", "textarea", "nav", "footer",
    "aside", "form", "button",
}  # fmt: skip
_BLOCKS: Final = {
    "p", "div", "section", "article", "main", "header", "h1", "h2", "h3", "h4", "h5", "h6",
    "ul", "ol", "li", "dl", "dt", "dd", "table", "tr", "pre", "blockquote", "figure", "br",
    "hr",
}  # fmt: skip
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_SPACE: Final = re.compile(r"[ \t\r\f\v\xa0]+")
_LINES: Final = re.compile(r" ?\n[ \n]*\n ?")


class PageText(msgspec.Struct, frozen=True):
    """See the module."""

    title: str
    text: str


def text_of_page(body: bytes, content_type: str, charset: str | None, url: str) -> PageText | None:
    """The text of a page; None for one that has none, such as a picture. Takes seconds at most; blocks."""
    if content_type in ("text/html", "application/xhtml+xml") or (not content_type and b"<html" in body[:2000].lower()):
        return _text_of_html(body, charset, url)
    if content_type.startswith("text/") or content_type.endswith(("json", "xml", "javascript")) or not content_type:
        try:
            text = body.decode(charset or "utf-8", errors="replace")
        except LookupError:  # a name that is none
            text = body.decode(errors="replace")
        return None if "\0" in text else PageText("", text.strip())
    return None


def _text_of_html(body: bytes, charset: str | None, url: str) -> PageText:
    reader = _Reader(url)
    try:
        parser = etree.HTMLParser(target=reader, encoding=charset)
    except LookupError:
        parser = etree.HTMLParser(target=reader)  # it finds out what the page says itself
    try:
        for place in range(0, len(body), _PIECE):
            parser.feed(body[place : place + _PIECE])
            reader.look_at_time()
        parser.close()
    except (_Enough, etree.LxmlError):
        pass  # of a broken page, too, there is what was read
    return reader.result()


class _Enough(Exception):
    """Time is up."""


class _Reader:
    """What lxml tells of a page, put together."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._deadline = time.monotonic() + _MAX_S
        self._num_events = 0
        self._skipping = ""  # the tag whose end ends it
        self._depth = 0
        self._num_main = 0
        self._is_title = False
        self._links: list[str] = []
        self._title: list[str] = []
        self._all: list[str] = []
        self._main: list[str] = []

    # --- lxml's target ---

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._look()
        if self._skipping:
            self._depth += tag == self._skipping
            return
        if tag in _SKIPPED:
            self._skipping, self._depth = tag, 1
        elif tag in ("main", "article"):
            self._num_main += 1
        elif tag == "title":
            self._is_title = not self._title
        elif tag == "a":
            self._links.append(self._target(attributes.get("href", "")))
            self._write("[" if self._links[-1] else "")
        self._write("\n\n" if tag in _BLOCKS and tag not in ("br", "tr", "li") else "\n" if tag in _BLOCKS else "")
        self._write("- " if tag == "li" else _HEADINGS.get(tag, " | " if tag in ("td", "th") else ""))

    def end(self, tag: str) -> None:
        self._look()
        if self._skipping:
            self._depth -= tag == self._skipping
            self._skipping = self._skipping if self._depth else ""
        elif tag in ("main", "article"):
            self._num_main = max(self._num_main - 1, 0)
        elif tag == "title":
            self._is_title = False
        elif tag == "a" and self._links and (target := self._links.pop()):
            self._write(f"]({target})")
        self._write("\n\n" if tag in _BLOCKS else "")

    def data(self, text: str) -> None:
        self._look()
        if self._is_title and not self._skipping:
            self._title.append(text)
        else:
            self._write(_SPACE.sub(" ", text))

    def close(self) -> None:
        """There is no more."""

    # --- the rest ---

    def look_at_time(self) -> None:
        """Raises _Enough when it is up."""
        if time.monotonic() > self._deadline:
            raise _Enough

    def result(self) -> PageText:
        everything, main = _tidy(self._all), _tidy(self._main)
        return PageText(" ".join("".join(self._title).split()), main if len(main) >= _MIN_MAIN_CHARS else everything)

    def _write(self, text: str) -> None:
        if text and not self._skipping:
            self._all.append(text)
            if self._num_main:
                self._main.append(text)

    def _target(self, href: str) -> str:
        """An absolute URL without its fragment; empty for what leads to no other page."""
        try:
            target = urljoin(self._url, href.strip()).partition("#")[0]
            return target if urlsplit(target).scheme in ("http", "https") and target != self._url else ""
        except ValueError:
            return ""

    def _look(self) -> None:
        self._num_events += 1
        if self._num_events % _EVENTS_PER_LOOK == 0:
            self.look_at_time()


def _tidy(parts: list[str]) -> str:
    return _LINES.sub("\n\n", _SPACE.sub(" ", "".join(parts))).strip()
