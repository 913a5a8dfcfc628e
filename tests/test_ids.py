"""ids.py: ids are unguessable, and those of items lead to their response."""

import re

import pytest

from engine.ids import maker_of, mint_id, mint_within


def test_ids_say_what_they_name_and_never_repeat() -> None:
    ids = {mint_id("resp") for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"resp_[0-9a-f]{24}", one) for one in ids)


def test_an_item_leads_to_the_response_that_made_it() -> None:
    response_id = mint_id("resp")
    mint = mint_within(response_id)
    ids = {mint("msg") for _ in range(100)}
    assert len(ids) == 100
    assert {maker_of(one) for one in ids} == {response_id}
    assert max(map(len, [*ids, mint("call")])) <= 64


@pytest.mark.parametrize(
    "item_id", ["", "msg_1", "resp_" + "0" * 24, "msg_" + "0" * 39, "msg_" + "g" * 40, "M_" + "0" * 40]
)
def test_ids_of_others_lead_nowhere(item_id: str) -> None:
    assert maker_of(item_id) is None
