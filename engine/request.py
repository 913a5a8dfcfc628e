"""A request for a run checked and resolved: what the run is asked to do."""

from typing import Any, Literal

import msgspec

from engine.backends.base import RunSpec, ToolChoice
from engine.bodies import CreateBody
from engine.content import InputText
from engine.echo import echo_of
from engine.errors import RequestError
from engine.events import ResponseObject
from engine.frames import Append, Create
from engine.hosted.base import Definition
from engine.hosted.kinds import definitions_of, hosted_types
from engine.items import CompactionTrigger, Item, Message, decode_items
from engine.parameters import Input, Parameters, PlainText, Text, refuse_unsupported, unsupported
from engine.settings import Settings
from engine.tool_choice import decode_tool_choice
from engine.toolspec import SkippedTool, Tool, decode_tools

Lifecycle = Literal["append", "inject", "chain", "stateless"]


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run needs from its client. `echo` is the response object's unchanging part.

    hosted: of its tools those that the server runs; they may hold secrets, so they are gone when the run starts, when
    `tools` has what they offer.
    """

    items: list[Item]
    tools: list[Tool]
    tool_choice: ToolChoice
    echo: ResponseObject
    hosted: list[Definition] = []
    include: frozenset[str] = frozenset()
    text_format: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    generate: bool = True
    wants_tokens: bool = False
    top_logprobs: int | None = None
    wants_padding: bool = False
    wants_sealed: bool = False
    wants_summary: bool = False
    compact_threshold: int | None = None
    compacts_first: bool = False
    names_agent: bool = False
    lifecycle: Lifecycle = "append"

    @property
    def keeps_items(self) -> bool:
        """Whether its items may be needed again.

        By a run that goes on from it, to make its context shorter, or because a client left hosted ones out.
        """
        is_shortened = self.compact_threshold is not None or self.compacts_first
        return self.lifecycle != "append" or is_shortened or any(tool.hosted for tool in self.tools)

    @property
    def conversation_id(self) -> str | None:
        """The conversation whose items it is given first."""
        return None if self.echo.conversation is msgspec.UNSET else self.echo.conversation["id"]

    @property
    def previous_response_id(self) -> str | None:
        """The run that this one goes on from."""
        return self.echo.previous_response_id

    def bare(self) -> "RunRequest":
        """The request without its items: they are given later, or somebody else has them."""
        return msgspec.structs.replace(self, items=[])

    def with_trigger(self) -> "RunRequest":
        """The request with what a `compaction_trigger` among its items asks for: as the last one, for nothing else."""
        items = [item for item in self.items if not isinstance(item, CompactionTrigger)]
        if len(items) == len(self.items):
            return self
        generate = self.generate and not isinstance(self.items[-1], CompactionTrigger)
        return msgspec.structs.replace(self, items=items, compacts_first=True, generate=generate)

    def spec(self, response_id: str) -> RunSpec:
        """The part of it that a backend sees."""
        echo = self.echo
        return RunSpec(
            response_id=response_id,
            model=echo.model,
            instructions=echo.instructions,
            tools=self.tools,
            temperature=self.temperature,
            top_p=self.top_p,
            presence_penalty=echo.presence_penalty,
            frequency_penalty=echo.frequency_penalty,
            seed=self.seed,
            max_output_tokens=echo.max_output_tokens,
            parallel_tool_calls=echo.parallel_tool_calls,
            text_format=self.text_format,
            reasoning_effort=(echo.reasoning or {}).get("effort"),
        )


def read_input(given: Input, settings: Settings) -> list[Item]:
    """The items of an `input`: a string is a user message. Raises RequestError with a path from `input` on."""
    if isinstance(given, str):
        return [Message(role="user", content=[InputText(text=given)])]
    if len(given) > settings.max_items:
        raise RequestError(f"More than {settings.max_items} items.", param="input", code="too_many_items")
    return decode_items(given)


def read_append(frame: Append, tools: list[Tool], settings: Settings) -> tuple[list[Item], ToolChoice | None]:
    """The items of an append frame and the tool choice it sets, None when it sets none. Raises RequestError."""
    is_set = bytes(frame.tool_choice) != b"null"
    choice = decode_tool_choice(frame.tool_choice, tools) if is_set else None
    return read_input(frame.input, settings), choice


def read_create(
    frame: Create, *, default_model: str, settings: Settings, lifecycle: Lifecycle = "append"
) -> RunRequest:
    """The run that a create frame asks for. Raises RequestError naming the field."""
    if frame.background:  # a run in the background is one that is read by HTTP
        raise unsupported("background")
    asked = _read(frame, default_model, settings, generate=frame.generate is not False)
    keep_open = settings.keep_open if frame.keep_open is None else frame.keep_open
    can_stay_open = lifecycle in ("append", "inject")
    if can_stay_open and asked.conversation_id is not None:  # such a run is a conversation by itself
        raise unsupported("conversation")
    echo = msgspec.structs.replace(asked.echo, keep_open=keep_open and can_stay_open, resumable=bool(frame.resumable))
    names_agent = frame.multi_agent is not None and frame.multi_agent.enabled
    return msgspec.structs.replace(asked, echo=echo, lifecycle=lifecycle, names_agent=names_agent)


def read_create_body(body: CreateBody, *, default_model: str, settings: Settings) -> RunRequest:
    """The run that the body of a POST asks for. Raises RequestError naming the field."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("'stream_options' is possible only with 'stream'.", param="stream_options")
    if body.background and body.store is False:
        raise RequestError("A response in the background has to be stored.", param="background")
    return msgspec.structs.replace(_read(body, default_model, settings), lifecycle="stateless")


def _read(asked: Parameters, default_model: str, settings: Settings, *, generate: bool = True) -> RunRequest:
    refuse_unsupported(asked)
    generate = generate and not asked.is_prewarm
    items = _items(asked, settings, generate=generate)
    tools, skipped = _tools(asked, settings)
    hosted = definitions_of(asked.tools or [], settings)
    return RunRequest(
        items=items,
        tools=tools,
        # What hosted tools there are to choose is known only when they are opened (hosting.py).
        tool_choice=ToolChoice() if hosted else decode_tool_choice(asked.tool_choice, tools),
        echo=echo_of(asked, default_model=default_model, skipped=skipped),
        hosted=hosted,
        include=frozenset(asked.include or ()) if hosted else frozenset(),
        text_format=_text_format(asked.text, settings),
        temperature=asked.temperature,
        top_p=asked.top_p,
        seed=asked.seed,
        generate=generate,
        wants_tokens=asked.includes("response.tokens"),
        top_logprobs=(asked.top_logprobs or 0) if asked.includes("message.output_text.logprobs") else None,
        wants_padding=bool(asked.stream_options and asked.stream_options.include_obfuscation),
        wants_sealed=asked.includes("reasoning.encrypted_content"),
        wants_summary=bool(asked.reasoning and asked.reasoning.wanted_summary),
        compact_threshold=asked.compact_threshold,
    )


def _items(asked: Parameters, settings: Settings, *, generate: bool) -> list[Item]:
    if asked.input is None:
        raise RequestError("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    items = read_input(asked.input, settings)
    more = (asked.instructions, asked.previous_response_id, asked.conversation_id)
    if not items and generate and more == (None, None, None):
        raise RequestError("The input is empty.", param="input")
    return items


def _tools(asked: Parameters, settings: Settings) -> tuple[list[Tool], list[SkippedTool]]:
    raw_tools = asked.tools or []
    if len(raw_tools) > settings.max_tools:
        raise _too_many_tools(settings)
    if sum(map(len, raw_tools)) > settings.max_tools_bytes:
        raise RequestError(f"The tools are longer than {settings.max_tools_bytes} bytes.", param="tools")
    tools, skipped = decode_tools(
        raw_tools,
        refuse_unknown=not settings.skip_unknown_tools,
        hosted=hosted_types(settings),
        max_schema_bytes=settings.max_schema_bytes,
    )
    if len(tools) > settings.max_tools:  # a namespace holds several
        raise _too_many_tools(settings)
    return tools, skipped


def _too_many_tools(settings: Settings) -> RequestError:
    return RequestError(f"More than {settings.max_tools} tools.", param="tools", code="too_many_tools")


def _text_format(text: Text | None, settings: Settings) -> dict[str, Any] | None:
    """The format a step's text is held to, None for plain text."""
    if text is None or text.format is None or isinstance(text.format, PlainText):
        return None
    if len(msgspec.json.encode(text.format)) > settings.max_schema_bytes:
        message = f"The format is longer than {settings.max_schema_bytes} bytes."
        raise RequestError(message, param="text.format.schema", code="invalid_json_schema")
    value: dict[str, Any] = msgspec.to_builtins(text.format)
    return value
