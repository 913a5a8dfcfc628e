"""The official SDK as a client of the contract server: what it sends is taken, what it is sent has its types' shape.

Its validation is strict, so a field of ours of another type than the published one fails here.
"""

from typing import Any, get_args, get_type_hints

import outcome
import pytest
import trio

from tests.contract_answers import Answer, Piece, called, problem, queue_exceeded, said, thought
from tests.contract_server import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MESSAGE_FIELDS,
    ContractServer,
    open_contract_server,
)

pytestmark = pytest.mark.peer

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ANSWER = Answer(
    deltas=[
        *thought("h", "m"),
        *said("Hel", "lo"),
        *called("look", "{}", shape="split"),
        *called("look", "{}", shape="bare"),
    ],
    pieces=[Piece("Hel", (1, 2)), Piece("lo", (3,))],
    reasoning_tokens=2,
)


async def use(server: ContractServer, ask: Any, **options: Any) -> Any:
    """What `ask` gives, called in a thread with a client of this server."""
    # Not at the top: without the package these tests are not selected, but they are still collected.
    from cerebras.cloud.sdk import Cerebras

    def in_thread(url: str) -> Any:
        with Cerebras(base_url=url, api_key="right", _strict_response_validation=True, **options) as client:
            return ask(client)

    with trio.fail_after(20):
        async with open_contract_server(server) as url:
            result = await outcome.acapture(trio.to_thread.run_sync, in_thread, url)
    return result.unwrap()


def stream_chat(client: Any) -> list[Any]:
    options = {"include_usage": True}
    return list(
        client.chat.completions.create(
            messages=MESSAGES, model="test-model", tools=[TOOL], stream=True, stream_options=options
        )
    )


async def test_a_streamed_chat_has_the_published_shape() -> None:
    server = ContractServer([ANSWER], api_key="right")
    chunks = await use(server, stream_chat)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.reasoning or "" for delta in deltas) == "hm"
    assert "".join(delta.content or "" for delta in deltas) == "Hello"
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 2
    assert chunks[-1].time_info.queue_time == 0.25
    assert [sent.path for sent in server.sent] == ["/v1/tcp_warming", "/v1/chat/completions"]


async def test_a_whole_chat_has_the_published_shape() -> None:
    server = ContractServer([ANSWER])
    chat = await use(server, lambda c: c.chat.completions.create(messages=MESSAGES, model="test-model"))
    assert chat.choices[0].message.content == "Hello" and chat.usage.total_tokens and chat.time_info.total_time


@pytest.mark.parametrize("stream", [True, False])
async def test_completions_of_ids_have_the_published_shape(stream: bool) -> None:
    def ask(client: Any) -> Any:
        asked = client.completions.create(
            prompt=[5, 6], model="test-model", return_raw_tokens=True, stream=stream, max_tokens=9
        )
        return list(asked) if stream else [asked]

    answers = await use(ContractServer([ANSWER]), ask)
    ids = [id_ for answer in answers for choice in answer.choices for id_ in choice.tokens or []]
    assert ids == [1, 2, 3] and answers[-1].usage.prompt_tokens == 2


async def test_models_have_the_published_shape() -> None:
    models = await use(ContractServer(models=("a", "b")), lambda client: client.models.list())
    assert [model.id for model in models.data] == ["a", "b"]


async def test_an_error_in_a_stream_is_one_to_it() -> None:
    server = ContractServer([Answer(deltas=said("a"), error=problem("broke", "server_error"))])
    from cerebras.cloud.sdk import APIError  # as above

    with pytest.raises(APIError, match="broke"):
        await use(server, stream_chat)


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (ContractServer(api_key="other"), "AuthenticationError"),
        (ContractServer(models=("other",)), "NotFoundError"),
        (ContractServer([Answer(status=429, error=queue_exceeded())]), "RateLimitError"),
        (ContractServer([Answer(status=402, error=problem("pay", "payment_required"))]), "APIStatusError"),
        (ContractServer([Answer(status=500)]), "InternalServerError"),
    ],
)
async def test_errors_are_known_to_it(server: ContractServer, kind: str) -> None:
    from cerebras.cloud import sdk  # as above

    with pytest.raises(getattr(sdk, kind)):
        await use(server, stream_chat, max_retries=0)


async def test_it_comes_again_when_it_was_told_to() -> None:
    limited = Answer(status=429, error=queue_exceeded(), headers={"retry-after": "0.01"})
    server = ContractServer([limited, ANSWER])
    assert len(await use(server, stream_chat, max_retries=1)) > 1
    assert len(server.asked) == 2


def test_the_fields_it_refuses_are_those_that_the_sdk_does_not_know() -> None:
    from cerebras.cloud.sdk.types import completion_create_params as completions  # as above
    from cerebras.cloud.sdk.types.chat import completion_create_params as chat

    headers = {"cf_ray", "x_amz_cf_id", "x_delay_time"}
    assert get_type_hints(chat.CompletionCreateParams).keys() - headers == CHAT_FIELDS
    assert get_type_hints(completions.CompletionCreateParams).keys() - headers == COMPLETION_FIELDS
    for kind in get_args(chat.Message):
        role = get_args(get_type_hints(kind)["role"])[0]
        assert MESSAGE_FIELDS[role] == get_type_hints(kind).keys()
