"""JSON from clients: what is wrong with it is told truly."""

import msgspec
import pytest

from engine.errors import RequestError
from engine.json_input import decode_json

DECODER = msgspec.json.Decoder(dict[str, str])


@pytest.mark.parametrize("text", [r"\ud800", r"a\uDC00b", r"\ud83d\ud83d", r"\\\ud800"])
def test_half_a_surrogate_pair_is_called_that(text: str) -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        decode_json(b'{"a": "%s"}' % text.encode(), DECODER, 10)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\\ud800"])
def test_whole_pairs_and_escaped_backslashes_are_none(text: str) -> None:
    assert decode_json(b'{"a": "%s"}' % text.encode(), DECODER, 10)


def test_what_is_cut_off_is_called_that() -> None:
    with pytest.raises(RequestError, match="truncated"):
        decode_json(b'{"a": "x', DECODER, 10)
