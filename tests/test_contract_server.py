"""The contract server, looked at byte by byte. What the official SDK makes of it: test_contract_sdk.py."""

import gzip
import json
import math
from typing import Any

import h11
import msgspec
import pytest
import trio

from tests.contract_answers import Answer, CallShape, Json, Piece, called, problem, queue_exceeded, said, thought
from tests.contract_server import MSGPACK, ContractServer

CHAT: Json = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
RAW: Json = {"model": "test-model", "prompt": [5, 6, 7], "return_raw_tokens": True}
PIECES = [Piece("Hel", (1, 2)), Piece("lo", (3,)), Piece("", (9,))]


class Asker:
    """A client that shows what came."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)
        self.status = 0
        self.headers: dict[str, str] = {}

    async def ask(self, path: str, body: Any = None, **headers: str) -> bytes:
        """The body of an answer; what came of it where it was cut."""
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"content_type": "application/json"} | headers
        lines = [("host", "x"), *((name.replace("_", "-"), value) for name, value in headers.items())]
        lines += [("content-length", str(len(body)))] if body is not None else []
        request = h11.Request(method="POST" if body is not None else "GET", target=path, headers=lines)
        for event in (request, h11.Data(data=body or b""), h11.EndOfMessage()):
            await self.stream.send_all(self._h11.send(event) or b"")
        return await self._read()

    async def _read(self) -> bytes:
        came = b""
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                came += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._h11.start_next_cycle()
                return came
            elif event is h11.NEED_DATA:
                data = bytes(await self.stream.receive_some())
                if not data:
                    return came
                self._h11.receive_data(data)


async def ask(server: ContractServer, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status, and JSON or the JSON of the events."""
    with trio.fail_after(5):
        async with server.running():
            asker = Asker(server.stream())
            raw = await asker.ask(path, body, **headers)
    return asker.status, events(raw) if raw.startswith(b"data: ") else json.loads(raw)


def events(raw: bytes) -> list[Any]:
    """What the events say; `[DONE]` as it is."""
    datas = [block.removeprefix("data: ") for block in raw.decode().split("\n\n") if block]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def chat_server(*deltas: Json, **fields: Any) -> ContractServer:
    return ContractServer([Answer(deltas=list(deltas), **fields)])


async def test_a_chat_is_streamed_with_usage_and_times_last() -> None:
    server = chat_server(*thought("hm"), *said("Hel", "lo"), cached_tokens=3)
    _, (first, second, third, end, counts, done) = await ask(server, "/v1/chat/completions", CHAT | STREAM)
    assert [part["choices"][0]["delta"] for part in (first, second, third)] == [
        {"role": "assistant", "reasoning": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
    ]
    assert end["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}] and "usage" not in end
    assert (
        counts["usage"]["prompt_tokens_details"] == {"cached_tokens": 3} and counts["time_info"]["queue_time"] == 0.25
    )
    assert done == "[DONE]"


STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}


async def test_usage_may_come_with_the_end() -> None:
    server = chat_server(*said("a"), usage_in="end")
    _, (_, end, _) = await ask(server, "/v1/chat/completions", CHAT | STREAM)
    assert end["choices"][0]["finish_reason"] == "stop" and end["usage"]["total_tokens"] > 0


SHAPES: list[tuple[CallShape, Json]] = [
    ("whole", {"index": 1, "id": "call_7"}),
    ("no_index", {"id": "call_7"}),
    ("no_id", {"index": 1}),
    ("bare", {}),
]


@pytest.mark.parametrize(("shape", "named"), SHAPES)
async def test_a_call_comes_whole(shape: CallShape, named: Json) -> None:
    server = chat_server(*called("look", '{"n":1}', call_id="call_7", index=1, shape=shape))
    _, (first, end, *_) = await ask(server, "/v1/chat/completions", CHAT | STREAM)
    (call,) = first["choices"][0]["delta"]["tool_calls"]
    assert call == {"type": "function", "function": {"name": "look", "arguments": '{"n":1}'}} | named
    assert end["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_call_comes_in_pieces() -> None:
    server = chat_server(*called("look", "{}", shape="split"))
    _, chunks = await ask(server, "/v1/chat/completions", CHAT | STREAM)
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks[:3]]
    assert [call["function"].get("arguments") for call in calls] == ["", "{", "}"]
    assert [call.get("id") for call in calls] == ["call_1", None, None]


@pytest.mark.parametrize(
    ("dialect", "path", "wants", "expected"),
    [
        ("cerebras", "/v1/completions", {"return_raw_tokens": True}, [{"tokens": [1, 2]}, {"tokens": [3]}]),
        ("cerebras", "/v1/completions", {}, [{"text": "Hel"}, {"text": "lo"}]),
        (
            "vllm",
            "/v1/completions",
            {"return_token_ids": True},
            [{"text": "Hel", "token_ids": [1, 2]}, {"text": "lo", "token_ids": [3]}],
        ),
    ],
)
async def test_a_raw_route_gives_ids(dialect: Any, path: str, wants: Json, expected: list[Json]) -> None:
    server = ContractServer([Answer(pieces=PIECES, finish="length")], dialect=dialect)
    body = {"model": "test-model", "prompt": [5, 6, 7]} | wants | STREAM
    _, (first, second, _, end, counts, _) = await ask(server, path, body)
    common = {"index": 0, "finish_reason": None, "logprobs": None}
    assert [part["choices"][0] for part in (first, second)] == [common | own for own in expected]
    assert end["choices"][0]["finish_reason"] == "length"
    assert counts["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": None,
    }
    assert ("time_info" in counts) is (dialect == "cerebras")


async def test_llama_cpp_has_a_route_of_its_own() -> None:
    server = ContractServer([Answer(pieces=PIECES, cached_tokens=2)], dialect="llamacpp")
    body = {"prompt": [5, 6, 7], "return_tokens": True, "stream": True}
    _, (*parts, end) = await ask(server, "/completion", body)
    assert [(part["content"], part["tokens"], part["stop"]) for part in parts] == [
        ("Hel", [1, 2], False),
        ("lo", [3], False),
        ("", [9], False),
    ]
    assert (end["stop"], end["stop_type"], end["tokens"]) == (True, "eos", [])
    assert (end["timings"]["cache_n"], end["timings"]["prompt_n"]) == (2, 1)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_an_answer_may_be_whole(path: str) -> None:
    answer = Answer(deltas=[*said("Hel", "lo"), *called("look", "{}")], pieces=PIECES)
    _, body = await ask(ContractServer([answer]), path, RAW if path == "/v1/completions" else CHAT)
    (choice,) = body["choices"]
    assert choice.get("tokens") == [1, 2, 3, 9] or choice["message"]["content"] == "Hello"
    assert body["usage"]["total_tokens"] and body["time_info"]


async def test_a_whole_answer_of_llama_cpp() -> None:
    server = ContractServer([Answer(pieces=PIECES)], dialect="llamacpp")
    _, body = await ask(server, "/completion", {"prompt": [5], "return_tokens": True})
    assert (body["content"], body["tokens"], body["stop"]) == ("Hello", [1, 2, 3, 9], True)


@pytest.mark.parametrize("coding", [None, "gzip"])
@pytest.mark.parametrize("kind", ["application/json", MSGPACK])
async def test_bodies_come_in_four_forms(kind: str, coding: str | None) -> None:
    server = chat_server(*said("a"))
    raw = msgspec.msgpack.encode(CHAT) if kind == MSGPACK else json.dumps(CHAT).encode()
    raw = gzip.compress(raw) if coding else raw
    headers = {"content_type": kind} | ({"content_encoding": coding} if coding else {})
    assert (await ask(server, "/v1/chat/completions", raw, **headers))[0] == 200
    assert server.asked[0].body == CHAT and server.asked[0].raw == raw


@pytest.mark.parametrize(
    ("headers", "server"),
    [
        ({"content_type": MSGPACK}, ContractServer(encodings=["gzip"])),
        ({"content_type": MSGPACK}, ContractServer(dialect="vllm")),
        ({"content_type": "application/json", "content_encoding": "gzip"}, ContractServer(encodings=["msgpack"])),
        ({"content_type": "text/plain"}, ContractServer()),
    ],
)
async def test_an_encoding_it_does_not_take_is_a_415(headers: dict[str, str], server: ContractServer) -> None:
    assert (await ask(server, "/v1/chat/completions", b"\x80", **headers))[0] == 415


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/chat/completions", CHAT | {"model": "other"}, 404, "model_not_found"),
        ("/v1/chat/completions", CHAT | {"surprise": 1}, 400, "wrong_api_format"),
        ("/v1/completions", RAW | {"return_token_ids": True}, 400, "wrong_api_format"),
        ("/v1/completions", RAW | {"prompt": [1] * 100}, 400, "context_length_exceeded"),
        ("/completion", RAW, 404, "not_found"),
        ("/v1/elsewhere", None, 404, "not_found"),
    ],
)
async def test_what_the_api_refuses_is_refused(path: str, body: Json | None, status: int, code: str) -> None:
    came = await ask(ContractServer(context_window=100), path, body)
    assert (came[0], came[1]["code"]) == (status, code)


async def test_a_field_of_a_message_that_is_another_servers_is_refused() -> None:
    body = CHAT | {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]}
    _, error = await ask(ContractServer(), "/v1/chat/completions", body)
    assert error["message"].startswith("messages.0.assistant.reasoning_content: property")


async def test_bad_json_is_a_400() -> None:
    assert (await ask(ContractServer(), "/v1/completions", b"{", content_type="application/json"))[0] == 400


@pytest.mark.parametrize(("key", "status"), [("Bearer right", 200), ("Bearer wrong", 401), ("", 401)])
async def test_a_key_is_asked_for(key: str, status: int) -> None:
    headers = {"authorization": key} if key else {}
    assert (await ask(ContractServer(api_key="right"), "/v1/models", **headers))[0] == status


async def test_errors_look_as_in_each_dialect() -> None:
    told = {}
    for dialect in ("cerebras", "vllm", "llamacpp"):
        server = ContractServer(dialect=dialect, models=("other",))
        told[dialect] = (await ask(server, "/v1/chat/completions", CHAT))[1]
    assert told["cerebras"]["code"] == "model_not_found"
    assert told["vllm"]["error"]["code"] == 404
    assert told["llamacpp"]["error"].keys() == {"code", "message", "type"}


async def test_a_rate_limit_says_when_to_come_again() -> None:
    answer = Answer(status=429, error=queue_exceeded(), headers={"retry-after": "2"})
    async with ContractServer([answer], headers={"x-ratelimit-remaining-tokens-minute": "7"}).running() as server:
        asker = Asker(server.stream())
        body = json.loads(await asker.ask("/v1/chat/completions", CHAT))
    assert (asker.status, body["code"], asker.headers["retry-after"]) == (429, "queue_exceeded", "2")
    assert asker.headers["x-ratelimit-remaining-tokens-minute"] == "7"


async def test_an_error_may_end_a_stream() -> None:
    server = chat_server(*said("a"), error=problem("broke", "server_error"))
    _, (first, error) = await ask(server, "/v1/chat/completions", CHAT | STREAM)
    assert first["choices"][0]["delta"]["content"] == "a"
    assert error == {"error": problem("broke", "server_error") | {"id": "err_1"}, "status_code": 500}


async def test_a_stream_may_end_without_saying_so() -> None:
    _, chunks = await ask(chat_server(*said("a"), has_end=False), "/v1/chat/completions", CHAT | STREAM)
    assert len(chunks) == 1


@pytest.mark.parametrize(
    ("dialect", "path", "status"),
    [
        ("cerebras", "/v1/tcp_warming", 200),
        ("vllm", "/v1/tcp_warming", 404),
        ("vllm", "/health", 200),
        ("llamacpp", "/props", 200),
        ("cerebras", "/props", 404),
    ],
)
async def test_each_dialect_has_its_own_pages(dialect: Any, path: str, status: int) -> None:
    assert (await ask(ContractServer(dialect=dialect), path))[0] == status


@pytest.mark.parametrize(
    ("dialect", "length"),
    [("vllm", {"max_model_len": 50}), ("llamacpp", {"meta": {"n_ctx": 50, "n_ctx_train": 50}}), ("cerebras", {})],
)
async def test_models_are_listed(dialect: Any, length: Json) -> None:
    _, body = await ask(ContractServer(dialect=dialect, models=("a", "b"), context_window=50), "/v1/models")
    assert [model["id"] for model in body["data"]] == ["a", "b"]
    assert body["data"][0].items() >= length.items()


async def test_one_connection_serves_several_requests() -> None:
    async with ContractServer([Answer(deltas=said("a"))] * 2).running() as server:
        asker = Asker(server.stream())
        await asker.ask("/v1/tcp_warming")
        for _ in range(2):
            assert events(await asker.ask("/v1/chat/completions", CHAT | STREAM))[-1] == "[DONE]"
    assert (server.num_connections, len(server.sent), len(server.asked)) == (1, 3, 2)


@pytest.mark.parametrize("slice_bytes", [None, 1, 7])
async def test_an_answer_is_cut_where_it_was_told(slice_bytes: int | None) -> None:
    whole = 0
    for cut in (None, 0, 1, 200, 300):
        server = chat_server(*said("Hello"), cut_after=cut, slice_bytes=slice_bytes)
        async with server.running():
            stream = server.stream()
            await Asker(stream).ask("/v1/chat/completions", CHAT | STREAM)
            await server.asked[0].ended.wait()
        whole = whole or server.asked[0].num_answered_bytes
        assert server.asked[0].num_answered_bytes == (whole if cut is None else cut)
        assert not server.asked[0].is_aborted


async def test_a_model_may_be_slow(autojump_clock: trio.testing.MockClock) -> None:
    server = chat_server(*said("a", "b"), first_after_s=5, between_s=2)
    began = trio.current_time()
    async with server.running():
        await Asker(server.stream()).ask("/v1/chat/completions", CHAT | STREAM)
    assert trio.current_time() - began == pytest.approx(5 + 3 * 2)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_is_noticed(is_streamed: bool) -> None:
    server = chat_server(first_after_s=math.inf)
    with trio.fail_after(5):
        async with server.running(), trio.open_nursery() as nursery:
            stream = server.stream()
            nursery.start_soon(Asker(stream).ask, "/v1/chat/completions", CHAT | {"stream": is_streamed})
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            await trio.aclose_forcefully(stream)
            await server.asked[0].ended.wait()
    assert server.asked[0].is_aborted


async def test_a_killed_server_drops_its_connections() -> None:
    server = chat_server(*said("a"), between_s=math.inf)
    with trio.fail_after(5):
        async with server.running(), trio.open_nursery() as nursery:
            nursery.start_soon(Asker(server.stream()).ask, "/v1/chat/completions", CHAT | STREAM)
            await trio.testing.wait_all_tasks_blocked()
            await server.drop_all()
    assert not server.asked[0].is_aborted


async def test_what_it_says_may_follow_from_what_it_was_asked() -> None:
    server = ContractServer(lambda sent: Answer(pieces=[Piece(ids=(sum(sent.body["prompt"]),))]))
    _, chunks = await ask(server, "/v1/completions", RAW | STREAM)
    assert chunks[0]["choices"][0]["tokens"] == [18]
