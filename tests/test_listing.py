"""listing.py: every item is listed with an id that stays, and pages cover a list once."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import NotFound
from engine.items import Item, decode_item, encode_item, item_id
from engine.listing import Order, as_listed, item_prefix, listed, page_of
from tests.machines import item, output, user
from tests.test_known_faults import HISTORY


def items() -> list[Item]:
    return [decode_item(msgspec.json.encode(one)) for one in HISTORY]


def shown(one: Item) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(encode_item(one))
    return value


def test_every_kind_of_item_has_an_id_of_its_kind() -> None:
    for before, after in zip(items(), listed(items()), strict=True):
        own = item_id(after)
        assert own
        assert own == (item_id(before) or own)
        if item_id(before) is None:
            assert own.startswith(f"{item_prefix(before)}_")
            assert item_prefix(before) != "item"


def test_ids_are_the_same_at_any_time_and_in_what_goes_on_from_there() -> None:
    first, longer = listed(items()), listed([*items(), user("more")])
    assert longer[: len(first)] == first
    assert len({item_id(one) for one in longer}) == len(longer)


def test_the_same_said_twice_is_two_items() -> None:
    once, twice = listed([user("hi"), user("hi")])
    assert item_id(once) != item_id(twice)


@pytest.mark.parametrize(
    ("role", "part"), [("user", "input_text"), ("developer", "input_text"), ("assistant", "output_text")]
)
def test_the_easy_form_of_a_message_is_written_out(role: str, part: str) -> None:
    (message,) = listed([item(role=role, content="hi")])
    value = shown(message)
    assert (value["type"], value["role"], value["status"]) == ("message", role, "completed")
    assert (value["content"][0]["type"], value["content"][0]["text"]) == (part, "hi")


def test_what_an_item_says_of_itself_stays() -> None:
    given_ = item(type="function_call_output", call_id="c", output=[{"type": "input_text", "text": "x"}],
                  id="fco_1", status="incomplete")  # fmt: skip
    assert listed([given_]) == [given_]
    hosted = {"type": "mcp_call", "id": "m1", "name": "n", "server_label": "s", "arguments": "{}", "x": [1]}
    assert [shown(one) for one in listed([item(**hosted)])] == [hosted]


def test_an_item_without_an_id_can_be_given_one() -> None:
    hosted = item(type="web_search_call", status="completed")
    assert item_id(as_listed(hosted, "ws_1")) == "ws_1"
    assert item_id(as_listed(output("c"), "fco_9")) == "fco_9"


@given(num_items=st.integers(0, 9), limit=st.integers(1, 5), order=st.sampled_from(["asc", "desc"]))
def test_pages_cover_the_list_once_in_order(num_items: int, limit: int, order: Order) -> None:
    all_items = listed([user(str(number)) for number in range(num_items)])
    seen: list[Any] = []
    after, has_more = None, True
    while has_more:
        page = page_of(all_items, limit=limit, order=order, after=after)
        data = [msgspec.json.decode(raw) for raw in page.data]
        assert (len(data) == limit) or not page.has_more
        assert [page.first_id, page.last_id] == ([data[0]["id"], data[-1]["id"]] if data else [None, None])
        seen += data
        after, has_more = page.last_id, page.has_more
    expected = [shown(one) for one in all_items]
    assert seen == (expected if order == "asc" else expected[::-1])


def test_a_page_behind_an_unknown_item_is_not_found() -> None:
    with pytest.raises(NotFound) as caught:
        page_of(listed([user("a")]), limit=1, order="asc", after="msg_x")
    assert caught.value.param == "after"
