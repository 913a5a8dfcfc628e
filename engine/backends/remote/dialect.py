"""What is asked of a server that takes and gives token ids, what it answers, and who puts the one into the other."""

from typing import Annotated, Any, Literal, Protocol

import msgspec

from engine.backends.chance import Chance
from engine.backends.remote.encoding import Encoding

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
End = Literal["stop", "length", "content_filter"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for besides the prompt. None: the service's default.

    cache_key: the same for what shares a prefix. schema: that the text is held to. top_logprobs: how many of the
    likeliest to tell with each id; None for no log-probabilities.
    """

    model: str
    max_tokens: int
    stop_ids: list[int] = []
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    cache_key: str | None = None
    schema: dict[str, Any] | None = None
    top_logprobs: int | None = None


class Times(msgspec.Struct, frozen=True):
    """The service's own account of a turn, in milliseconds."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    sampling_ms: float = 0.0


class Chunk(msgspec.Struct, frozen=True):
    """What an event says. num_cached: tokens of the prompt that were not computed again. is_last: nothing follows.

    num_told: how many ids there must be by now; None where the service does not count. has_lost_ids: there is text, and
    nothing is told of its ids. chances: one for each id, where
    they were asked for and the service tells them by id (llama.cpp's tells none of ids that end inside a character).
    """

    ids: list[int] = []
    chances: list[Chance] | None = None
    end: End | None = None
    num_cached: int | None = None
    times: Times | None = None
    is_last: bool = False
    num_told: int | None = None
    has_lost_ids: bool = False


class Dialect(Protocol):
    """One server's way. Pure.

    encoding: the best that it takes. warm_path: a GET that means nothing. has_schemas: it can hold an answer to one.
    wants_ids_by: the name of the field that asks for ids.
    """

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def encoding(self) -> Encoding: ...
    @property
    def warm_path(self) -> str | None: ...
    @property
    def has_schemas(self) -> bool: ...
    @property
    def wants_ids_by(self) -> str: ...

    def fields(self, ask: Ask, *, stream: bool = True) -> dict[str, Any]:
        """The request's body without its `prompt`."""

    def read(self, event: bytes) -> Chunk:
        """What the data of an event says. Raises UpstreamError for an error, or for what is no answer."""

    def tokenize_fields(self, model: str, text: str) -> dict[str, Any] | None:
        """The body that asks `^/tokenize` for the `tokens` of plain text; None where that cannot be asked."""
