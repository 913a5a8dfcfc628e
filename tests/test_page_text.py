"""hosted/page_text.py: what of a page a model reads, also of one that means harm."""

import time

import pytest

from engine.hosted import page_text
from engine.hosted.page_text import PageText, text_of_page

URL = "https://site.test/docs/page"
PAGE = """<!doctype html><html><head><title>A &amp; B
 page</title><style>p {}</style><script>evil()</script></head>
<body><nav>menu <a href="/">home</a></nav><h1>Head</h1><p>One   <b>bold</b>
word &ndash; <a href="../other?a=1#part">a link</a>, <a href="#here">here</a>, <a href="javascript:x()">js</a></p>
<ul><li>first<li>second</ul><table><tr><td>1</td><td>2</td></tr></table>
<svg><title>drawn</title><text>x</text></svg><form><button>Send</button></form><footer>legal</footer></body></html>"""


def of_html(html: str) -> PageText:
    found = text_of_page(html.encode(), "text/html", "utf-8", URL)
    assert found is not None
    return found


def test_a_page_is_its_title_text_and_links() -> None:
    found = of_html(PAGE)
    assert found.title == "A & B page"
    assert found.text == (
        "# Head\n\nOne bold\nword – [a link](https://site.test/other?a=1), here, js\n\n- first\n\n- second\n\n| 1 | 2"
    )


def test_what_is_in_main_is_the_page_if_it_is_long_enough() -> None:
    assert of_html(f"<p>around</p><main><p>{'long ' * 50}</p></main>").text == ("long " * 50).strip()
    assert of_html("<p>around</p><main>short</main>").text == "around\n\nshort"


@pytest.mark.parametrize(
    ("body", "content_type", "charset", "text"),
    [
        ("grüße".encode("latin-1"), "text/plain", "latin-1", "grüße"),
        ("grüße".encode(), "text/plain", None, "grüße"),
        ("grüße".encode(), "text/plain", "no-such-charset", "grüße"),
        (b'{"a": 1}', "application/json", None, '{"a": 1}'),
        (b"plain", "", None, "plain"),
        ("<html><p>grüße".encode(), "", "utf-8", "grüße"),
        ("<p>grüße".encode("latin-1"), "text/html", "iso-8859-1", "grüße"),
        ('<meta charset="iso-8859-1"><p>grüße'.encode("latin-1"), "text/html", "no-such-charset", "grüße"),
        (b"", "text/html", None, ""),
        (b"<", "text/html", None, "<"),
    ],
)
def test_text_of_every_kind_is_decoded(body: bytes, content_type: str, charset: str | None, text: str) -> None:
    found = text_of_page(body, content_type, charset, URL)
    assert found is not None
    assert found.text == text


@pytest.mark.parametrize(("body", "content_type"), [(b"\x89PNG", "image/png"), (b"a\0b", "text/plain"), (b"a\0b", "")])
def test_what_is_no_text_has_none(body: bytes, content_type: str) -> None:
    assert text_of_page(body, content_type, None, URL) is None


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 200_000,
        "<a " + " ".join(f"a{number}=1" for number in range(100_000)) + ">",
        "<b><i>" * 50_000,
        "<" * 500_000,
        "<!--" * 200_000 + "-->",
        "<a href=//[>x</a>" * 50_000,
        "<svg>" * 100_000 + "</svg>" * 100_000,
        "&amp" * 200_000,
        "<svg>" * 50_000 + "</nav>" * 100_000,
    ],
)
def test_a_hostile_page_takes_no_longer_than_others_of_its_size(html: str) -> None:
    start = time.process_time()
    assert "before" in of_html(f"before{html}").text
    assert time.process_time() - start < 5  # a tree takes minutes for the first two


def test_time_that_is_up_leaves_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_text, "_MAX_S", 0)
    assert 0 < len(of_html("<p>word</p>" * 10_000).text) < 10_000
