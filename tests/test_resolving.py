"""resolving.py: what a client carried sealed or named by id is what the model is given."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.content import ReasoningText, SummaryText
from engine.errors import RequestError
from engine.items import Compaction, Item, ItemReference, Reasoning
from engine.resolving import look_up_items, open_items, seal_reasoning, seal_window
from engine.sealing import Sealer, new_key
from tests.machines import call_item, item, output, user

SEALER = Sealer(new_key())


def refusal(items: list[Item], sealer: Sealer = SEALER) -> RequestError:
    with pytest.raises(RequestError) as caught:
        open_items(items, sealer)
    return caught.value


def test_what_stands_for_itself_is_left_alone() -> None:
    items = [user(), item(type="reasoning", summary=[]), call_item("c"), output("c"), item(type="web_search_call")]
    resolved = open_items(items, SEALER)
    assert all(one is other for one, other in zip(resolved, items, strict=True))


# --- reasoning ---------------------------------------------------------------------------------------------------


@given(text=st.text())
def test_sealed_reasoning_is_opened_verbatim(text: str) -> None:
    summary = [SummaryText(text="short")]
    given = Reasoning(id="rs_1", summary=summary, encrypted_content=seal_reasoning(text, SEALER))
    assert open_items([given], SEALER) == [Reasoning(id="rs_1", summary=summary, content=[ReasoningText(text=text)])]


@pytest.mark.parametrize("content", [None, []])
def test_reasoning_without_content_is_opened(content: Any) -> None:
    given = Reasoning(content=content, encrypted_content=seal_reasoning("hm", SEALER))
    assert open_items([given], SEALER) == [Reasoning(content=[ReasoningText(text="hm")])]


def test_reasoning_in_the_clear_is_taken_as_it_is() -> None:
    given = Reasoning(content=[ReasoningText(text="clear")], encrypted_content="of another server")
    assert open_items([given], SEALER) == [given]


@pytest.mark.parametrize(
    "damaged",
    ["", "gAAAA", seal_reasoning("x", SEALER)[:-5], seal_window([user()], SEALER)],
    ids=["nothing", "another's", "cut", "a window"],
)
def test_what_this_server_has_not_sealed_is_refused_by_its_place(damaged: str) -> None:
    for kind in (Reasoning(encrypted_content=damaged), Compaction(encrypted_content=damaged)):
        if isinstance(kind, Compaction) and damaged == seal_window([user()], SEALER):
            continue
        error = refusal([user(), kind])
        assert (error.param, error.code) == ("[1].encrypted_content", "invalid_encrypted_content")
        assert error.status == 400


def test_another_servers_seal_is_refused() -> None:
    assert refusal([Reasoning(encrypted_content=seal_reasoning("x", SEALER))], Sealer(new_key())).status == 400


# --- compaction --------------------------------------------------------------------------------------------------

WINDOW = [user("Fix the bug."), item(type="message", role="developer", content="So far: it is in the parser.")]


def test_a_compaction_takes_the_place_of_everything_before_it() -> None:
    compaction = Compaction(encrypted_content=seal_window(WINDOW, SEALER), id="cmp_1")
    after = [user("And now?"), call_item("c"), output("c")]
    assert open_items([compaction, *after], SEALER) == [*WINDOW, *after]
    assert open_items([user("Fix the bug."), call_item("b"), output("b"), compaction, *after], SEALER) == [
        *WINDOW,
        *after,
    ]


def test_of_several_compactions_the_last_one_counts() -> None:
    older = Compaction(encrypted_content=seal_window([user("old")], SEALER))
    newer = Compaction(encrypted_content=seal_window(WINDOW, SEALER))
    assert open_items([older, user(), newer, user("more")], SEALER) == [*WINDOW, user("more")]


def test_a_trigger_is_refused_by_its_place() -> None:
    error = refusal([user(), item(type="compaction_trigger")])
    assert (error.param, error.code) == ("[1].type", "unsupported_item")


# --- references --------------------------------------------------------------------------------------------------


def test_a_reference_is_the_item_it_names() -> None:
    kept: dict[str, Item] = {"msg_1": user("kept"), "rs_1": Reasoning(encrypted_content="x")}
    items: list[Item] = [ItemReference(id="msg_1"), user(), ItemReference(id="rs_1")]
    assert look_up_items(items, kept.get) == [kept["msg_1"], user(), kept["rs_1"]]


def test_a_reference_that_leads_nowhere_is_refused_by_its_place() -> None:
    with pytest.raises(RequestError) as caught:
        look_up_items([user(), ItemReference(id="msg_9")], {}.get)
    error = caught.value
    assert (error.param, error.code, error.status) == ("input[1].id", "item_not_found", 404)
    assert error.message.startswith("Item with id 'msg_9' not found.")


def test_what_is_no_reference_is_left_alone() -> None:
    items = [user(), item(type="compaction", encrypted_content="x")]
    assert all(one is other for one, other in zip(look_up_items(items, {}.get), items, strict=True))
