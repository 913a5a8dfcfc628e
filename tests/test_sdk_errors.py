"""What goes wrong, as the users of openai-python meet it: which exception, with which code, param and request id."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.peers.played import open_recorded

pytestmark = pytest.mark.peer

SCENARIO: Final = """
model: test
steps:
  - cases:
      - when: {last_user_contains: break}
        steps: [[{text: Half.}, {fail: {message: Broken.}}]]
      - steps: [{text: {tokens: 50}}]
"""
ORPHAN: Final = {"type": "function_call_output", "call_id": "call_9", "output": "x"}


@asynccontextmanager
async def open_client(folder: Path) -> AsyncIterator[Any]:
    """An OpenAI client of a server that plays the scenario; it tries nothing twice and does not wait for long."""
    from openai import OpenAI  # not at the top: without the package nothing here is selected, but still collected

    async with open_recorded(SCENARIO, folder) as recorder:
        with OpenAI(base_url=recorder.url, api_key="a-key", timeout=10, max_retries=0) as client:
            yield client


async def raised(call: Callable[[], Any]) -> Any:
    """The exception that a call of the SDK raises."""
    from openai import OpenAIError  # as above

    with pytest.raises(OpenAIError) as caught:
        await trio.to_thread.run_sync(call)
    return caught.value


async def test_what_is_refused_is_an_exception_by_its_status(tmp_path: Path):
    async with open_client(tmp_path) as client:
        create = client.responses.create
        for call, name, code, param in (
            (lambda: create(input="x", model="none"), "NotFoundError", "model_not_found", "model"),
            (lambda: create(input="x", model="none", stream=True), "NotFoundError", "model_not_found", "model"),
            (lambda: create(input="x", temperature=3), "BadRequestError", "invalid_value", "temperature"),
            (lambda: create(input=[ORPHAN]), "BadRequestError", "invalid_value", "input[0].call_id"),
            (lambda: client.responses.retrieve("resp_x"), "NotFoundError", "response_not_found", "response_id"),
        ):
            error = await raised(call)
            assert (type(error).__name__, error.code, error.param) == (name, code, param)
            assert error.request_id.startswith("req_")


async def test_what_breaks_on_the_way_is_an_exception_with_the_servers_words(tmp_path: Path):
    async with open_client(tmp_path) as client:
        error = await raised(lambda: list(client.responses.create(input="break", stream=True)))
        assert (error.code, error.message) == ("server_error", "Broken.")
        whole = await trio.to_thread.run_sync(lambda: client.responses.create(input="break"))
        assert (whole.status, whole.error.message, whole.output_text) == ("failed", "Broken.", "Half.")
        cut = await trio.to_thread.run_sync(lambda: client.responses.create(input="x", max_output_tokens=16))
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_an_error_leaves_the_socket_to_the_next_create(tmp_path: Path):
    def talk() -> list[Any]:
        with client.responses.connect() as connection:
            connection.response.create(input="x", model="none")
            refused = connection.recv()
            connection.response.create(input="x")
            return [refused, next(event for event in connection if event.type == "response.completed")]

    async with open_client(tmp_path) as client:
        refused, completed = await trio.to_thread.run_sync(talk)
    assert (refused.type, refused.status, refused.error.code) == ("error", 404, "model_not_found")
    assert completed.response.status == "completed"
