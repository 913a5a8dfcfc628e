"""A `response.create` frame checked and resolved: what one run is asked to do."""

from typing import Any

import msgspec

from engine.backends.base import RunSpec, ToolChoice
from engine.content import InputText
from engine.errors import RequestError
from engine.events import ResponseObject
from engine.frames import Append, Create, Input, decode_tool_choice
from engine.items import Item, Message, decode_items
from engine.settings import Settings
from engine.toolspec import SkippedTool, Tool, decode_tools


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run needs from its client. `echo` is the response object's unchanging part."""

    items: list[Item]
    tools: list[Tool]
    tool_choice: ToolChoice
    echo: ResponseObject
    text_format: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    generate: bool = True
    wants_tokens: bool = False

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


def read_create(frame: Create, *, default_model: str, settings: Settings) -> RunRequest:
    """The run that a create frame asks for. Raises RequestError naming the field."""
    _refuse_unsupported(frame)
    if frame.input is None:
        raise RequestError("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    items = read_input(frame.input, settings)
    if not items and frame.generate is not False and frame.instructions is None:
        raise RequestError("The input is empty.", param="input")
    raw_tools = frame.tools or []
    if len(raw_tools) > settings.max_tools:
        raise _too_many_tools(settings)
    tools, skipped = decode_tools(raw_tools, refuse_unknown=not settings.skip_unknown_tools)
    if len(tools) > settings.max_tools:  # a namespace holds several
        raise _too_many_tools(settings)
    return RunRequest(
        items=items,
        tools=tools,
        tool_choice=decode_tool_choice(frame.tool_choice, tools),
        echo=_echo(frame, default_model, skipped, settings),
        text_format=_text_format(frame.text),
        temperature=frame.temperature,
        top_p=frame.top_p,
        seed=frame.seed,
        generate=frame.generate is not False,
        wants_tokens="response.tokens" in (frame.include or ()),
    )


def _too_many_tools(settings: Settings) -> RequestError:
    return RequestError(f"More than {settings.max_tools} tools.", param="tools", code="too_many_tools")


def _refuse_unsupported(frame: Create) -> None:
    if frame.previous_response_id is not None:
        raise RequestError(
            f"Previous response with id '{frame.previous_response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    # Both would bring input of their own, so ignoring them would answer another question than the one asked.
    for name in ("conversation", "prompt"):
        if getattr(frame, name) is not None:
            raise RequestError(f"Unsupported parameter: '{name}'.", param=name, code="unsupported_parameter")
    if frame.truncation == "auto":
        raise RequestError("'auto' is not supported; the context is never cut silently.", param="truncation")


def _echo(frame: Create, default_model: str, skipped: list[SkippedTool], settings: Settings) -> ResponseObject:
    # Copies, because a Raw keeps the whole frame it came from alive.
    choice = frame.tool_choice.copy() if bytes(frame.tool_choice) != b"null" else "auto"
    keep_open = settings.keep_open if frame.keep_open is None else frame.keep_open
    return ResponseObject(
        id="",
        created_at=0,
        status="in_progress",
        model=frame.model or default_model,
        instructions=frame.instructions,
        tools=[tool.copy() for tool in frame.tools or []],
        tool_choice=choice,
        parallel_tool_calls=frame.parallel_tool_calls is not False,
        text=_echoed_text(frame.text),
        reasoning=frame.reasoning and {"effort": frame.reasoning.effort, "summary": frame.reasoning.summary},
        temperature=1.0 if frame.temperature is None else frame.temperature,
        top_p=1.0 if frame.top_p is None else frame.top_p,
        presence_penalty=frame.presence_penalty or 0.0,
        frequency_penalty=frame.frequency_penalty or 0.0,
        top_logprobs=frame.top_logprobs or 0,
        max_output_tokens=frame.max_output_tokens,
        max_tool_calls=frame.max_tool_calls,
        metadata=frame.metadata or {},
        safety_identifier=frame.safety_identifier,
        prompt_cache_key=frame.prompt_cache_key,
        user=frame.user,
        keep_open=keep_open,
        resumable=bool(frame.resumable),
        skipped_tools=skipped or msgspec.UNSET,
    )


def _echoed_text(text: dict[str, Any] | None) -> dict[str, Any]:
    given = text or {}
    return given | {"format": given.get("format") or {"type": "text"}}


def _text_format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    """The format a step's text is held to, None for plain text. Raises RequestError naming `text.format…`."""
    chosen = (text or {}).get("format")
    if chosen is None:
        return None
    kind = chosen.get("type") if isinstance(chosen, dict) else None
    if kind == "text":
        return None
    if kind == "json_object" or (kind == "json_schema" and isinstance(chosen.get("schema"), dict)):
        return dict(chosen)
    param = "text.format.schema" if kind == "json_schema" else "text.format.type"
    raise RequestError("Expected a format of type text, json_object or json_schema with a schema.", param=param)
