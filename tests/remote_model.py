"""Models for the contract server's raw routes: what comes next depends on every id that was sent."""

import zlib
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.dialects import dialect_of
from engine.backends.remote.link import Link, LinkConfig
from engine.backends.remote.raw import RawBackend, RawModel, open_raw_backend
from tests.contract_answers import Answer, Piece
from tests.contract_server import ContractServer, Sent, open_contract_server
from tests.tiny import STOP_ID

MODEL = "tiny"  # as the models of other tests are called
Speaker = Callable[[list[int], int], list[int]]  # a context, and the most ids that are wanted, to what follows


def hashed(ids: list[int], limit: int) -> list[int]:
    """Never a control token, so only the limit ends it. One id less, more or misplaced gives others ever after."""
    context = array("I", ids)
    for _ in range(limit):
        context.append(3 + zlib.crc32(context.tobytes()) % 256)
    return context[len(ids) :].tolist()


def saying(form: PromptFormat, *turns: str) -> Speaker:
    """The text of the turn that the context has come to, from wherever in it that is; then the stop id."""
    header = form.header_ids
    whole = [[*form.vocabulary.encode(text), STOP_ID] for text in turns]

    def speak(ids: list[int], limit: int) -> list[int]:
        places = [at for at, first in enumerate(ids) if first == header[0] and ids[at : at + len(header)] == header]
        wanted, said = whole[len(places) - 1], ids[places[-1] + len(header) :]
        assert wanted[: len(said)] == said, "an id was lost, came twice, or is another one"
        return wanted[len(said) :][:limit]

    return speak


def speaking(speak: Speaker, *, gives_stop: bool = True, **fields: Any) -> Callable[[Sent], Answer]:
    """A model's answers, an id a chunk. gives_stop: the stop id is among them."""

    def answer(sent: Sent) -> Answer:
        ids = speak(list(sent.body["prompt"]), sent.body.get("max_tokens", sent.body.get("n_predict")))
        finish = "stop" if ids[-1] == STOP_ID else "length"
        if finish == "stop" and not gives_stop:
            ids = ids[:-1]
        return Answer(pieces=[Piece(f"<{token_id}>", (token_id,)) for token_id in ids], finish=finish, **fields)

    return answer


@asynccontextmanager
async def open_remote(server: ContractServer, form: PromptFormat, **config: Any) -> AsyncIterator[RawBackend]:
    """The raw route to this server, over a socket."""
    async with open_contract_server(server) as url, open_raw(url, server, form, **config) as backend:
        yield backend


@asynccontextmanager
async def open_raw(url: str, server: ContractServer, form: PromptFormat, **config: Any) -> AsyncIterator[RawBackend]:
    """The raw route to what is at this URL."""
    dialect = dialect_of(server.dialect)
    assert dialect is not None
    link = Link(LinkConfig(**({"base_url": f"{url}/v1", "encoding": dialect.encoding} | config)))
    model = RawModel(id=MODEL, created=1, owned_by=dialect.name)
    async with open_raw_backend(link, dialect, model, form) as backend:
        yield backend
