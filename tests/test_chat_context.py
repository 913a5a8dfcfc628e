"""A context of messages: it only grows, whatever is done to it, and every request says all of it."""

import gzip
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.remote.chat_calls import OpenCall
from engine.backends.remote.chat_chunks import CallPart, Function
from engine.backends.remote.chat_context import ChatContext
from engine.backends.remote.chat_tools import ChatTools
from engine.backends.remote.encoding import Encoding
from engine.errors import RequestError
from engine.items import FunctionCallOutput, Item, Message
from engine.toolspec import Tool

TOOLS = ChatTools([Tool("function", "look", parameters={"type": "object"})])
ENCODINGS = [Encoding(msgpack=m, gzip=g) for m in (False, True) for g in (False, True)]


def user(text: str) -> Message:
    return Message(role="user", content=text)


def call(call_id: str = "", arguments: str = "{}") -> OpenCall:
    made = OpenCall(None, "")
    made.take(CallPart(id=call_id or None, function=Function("look", arguments)))
    return made


def give(context: ChatContext, *items: Item) -> None:
    context.commit(context.prepare(items))


def sent(context: ChatContext, encoding: Encoding) -> Any:
    """The messages as a service reads them."""
    body = context.body({"model": "m"}, encoding)
    raw = gzip.decompress(body) if encoding.gzip else body
    value = msgspec.msgpack.decode(raw) if encoding.msgpack else json.loads(raw)
    assert value.keys() == {"model", "messages"}
    return value["messages"]


def test_the_first_items_bring_instructions_and_the_weight_of_tools() -> None:
    bare, full = ChatContext(None, ChatTools([]), None), ChatContext("Be kind.", TOOLS, None)
    assert full.prepare([user("hi")]).num_tokens > bare.prepare([user("hi")]).num_tokens + TOOLS.num_bytes // 4
    give(full, user("hi"))
    assert [message.role for message in full.messages] == ["system", "user"]
    assert full.prepare([user("hi")]).num_tokens == bare.prepare([user("hi")]).num_tokens


def test_calls_without_ids_get_some_and_outputs_go_to_them_in_order() -> None:
    context = ChatContext(None, TOOLS, None)
    give(context, user("hi"))
    context.said("", "", [call(), call("theirs"), call()], 50)
    give(context, FunctionCallOutput(call_id="x", output="1"), FunctionCallOutput(call_id="y", output="2"))
    give(context, FunctionCallOutput(call_id="z", output="3"))
    assert [message.tool_call_id for message in context.messages[2:]] == ["call_1", "theirs", "call_3"]
    context.said("", "", [call()], 60)
    give(context, FunctionCallOutput(call_id="w", output="4"))
    assert context.messages[-1].tool_call_id == "call_4", "no two calls of a run have the same"


@pytest.mark.parametrize(("window", "fits"), [(None, True), (100, True), (10, False)])
def test_a_window_is_kept_to(window: int | None, fits: bool) -> None:
    context = ChatContext(None, ChatTools([]), None, window)
    if fits:
        context.prepare([user("x" * 80)])
        return
    with pytest.raises(RequestError) as refused:
        context.prepare([user("x" * 80)])
    assert refused.value.code == "context_length_exceeded"


_texts = st.text(max_size=6)
_acts = st.one_of(
    st.tuples(st.just("give"), st.lists(_texts, max_size=3)),
    st.tuples(st.just("said"), st.tuples(_texts, _texts, st.integers(0, 2))),
    st.tuples(st.just("fork"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("send"), st.sampled_from(ENCODINGS)),
)


@given(st.lists(_acts, max_size=20))
def test_any_walk_sends_what_was_given_and_said(acts: list[tuple[str, Any]]) -> None:
    contexts = [ChatContext("Be kind.", TOOLS, "reasoning")]
    expected: list[list[tuple[str, str | None]]] = [[]]
    for act, value in acts:
        context, told = contexts[-1], expected[-1]
        if act == "give":
            if not told:
                told.append(("system", "Be kind."))
            give(context, *map(user, value))
            told += [("user", text) for text in value]
        elif act == "said":
            text, thoughts, num_calls = value
            context.said(text, thoughts, [call() for _ in range(num_calls)], context.num_tokens + 1)
            if (text.strip() if num_calls else text) or num_calls:
                shown = text if text.strip() or not num_calls else None
                told.append(("assistant", shown))
        elif act == "fork":
            contexts.append(context.fork())
            expected.append(list(told))
        elif act == "restart":
            context.restart()
            told.clear()
        else:
            for one, wanted in zip(contexts, expected, strict=True):
                assert [(message["role"], message["content"]) for message in sent(one, value)] == wanted
    for one, wanted in zip(contexts, expected, strict=True):
        for encoding in ENCODINGS:
            messages = sent(one, encoding)
            assert [(message["role"], message["content"]) for message in messages] == wanted
            assert messages == json.loads(msgspec.json.encode(one.messages))
