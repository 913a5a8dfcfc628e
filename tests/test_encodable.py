"""encodable.py: half a surrogate pair, wherever it is."""

import msgspec

from engine.encodable import encodable, encodable_value


def test_half_a_pair_is_replaced_and_all_else_is_as_it_was():
    text = "ok é 😀\0"
    assert encodable(text) is text
    assert encodable("a\ud800b\udc80") == "a?b?"


def test_every_text_of_a_value_is_looked_at():
    value = {"x\ud800": ["y\udfff", 1, None, {"z": "\ud800", "t": True}]}
    assert encodable_value(value) == {"x?": ["y?", 1, None, {"z": "?", "t": True}]}
    assert msgspec.json.encode(encodable_value(value))
