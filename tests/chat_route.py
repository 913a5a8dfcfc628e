"""The chat route against the contract server, over a socket of this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from engine.backends.base import Delta, ModelInfo, RunSpec, Sequence, StepEnd, StepSpec, TextDelta
from engine.backends.remote.chat import ChatBackend, open_chat_backend
from engine.backends.remote.chat_request import DIALECTS
from engine.backends.remote.encoding import PLAIN
from engine.backends.remote.link import Link, LinkConfig
from engine.items import Item, Message
from engine.toolspec import Tool
from tests.contract_server import ContractServer, open_contract_server

MODEL = "test-model"
LOOK = Tool("function", "look", parameters={"type": "object", "properties": {}})


@asynccontextmanager
async def open_chat(server: ContractServer, window: int | None = None, **config: Any) -> AsyncIterator[ChatBackend]:
    """A backend on this server, which is served meanwhile. window: of its models, as far as it is known."""
    async with open_contract_server(server) as url:
        link = Link(LinkConfig(base_url=f"{url}/v1", **({"key": "right", "encoding": PLAIN} | config)))
        models = [ModelInfo(name, 0) for name in server.models]
        async with open_chat_backend(link, DIALECTS[server.dialect], models, window) as backend:
            yield backend


def spec(**fields: Any) -> RunSpec:
    """A run that may look."""
    return RunSpec(**({"response_id": "resp_1", "model": MODEL, "tools": [LOOK]} | fields))


def user(text: str) -> Message:
    return Message(role="user", content=text)


async def give(sequence: Sequence, *items: Item) -> None:
    """Put items into the context."""
    sequence.commit(await sequence.prepare(items))


async def sample(sequence: Sequence, step: StepSpec | None = None) -> tuple[list[Delta], StepEnd]:
    """A whole step: what it said, and its end."""
    sequence.start_step(step or StepSpec())
    return await rest(sequence)


async def rest(sequence: Sequence) -> tuple[list[Delta], StepEnd]:
    """The rest of a step."""
    deltas: list[Delta] = []
    while not deltas or not isinstance(deltas[-1], StepEnd):
        deltas += await sequence.next_deltas()
    end = deltas.pop()
    assert isinstance(end, StepEnd)
    return deltas, end


def text_of(deltas: list[Delta]) -> str:
    """The text that they say."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
