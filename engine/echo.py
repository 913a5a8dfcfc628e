"""The part of the response object that stays the same over a run: what was asked for, as clients read it back."""

from typing import Any, Final

import msgspec

from engine.events import ResponseObject
from engine.hosted.mcp_definition import without_secrets
from engine.parameters import Parameters, PlainText, PromptCacheOptions, Reasoning, Text
from engine.toolspec import SkippedTool


def echo_of(asked: Parameters, *, default_model: str, skipped: list[SkippedTool]) -> ResponseObject:
    """The response object with what the parameters say; its id and everything that changes are still to come."""
    return ResponseObject(
        id="",
        created_at=0,
        status="in_progress",
        model=asked.model or default_model,
        previous_response_id=asked.previous_response_id,
        conversation=msgspec.UNSET if asked.conversation_id is None else {"id": asked.conversation_id},
        instructions=asked.instructions,
        tools=[_tool(tool) for tool in asked.tools or []],
        tool_choice=asked.tool_choice.copy() if bytes(asked.tool_choice) != b"null" else "auto",
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        text=_text(asked.text),
        reasoning=_reasoning(asked.reasoning),
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        top_logprobs=asked.top_logprobs or 0,
        max_output_tokens=asked.max_output_tokens,
        max_tool_calls=asked.max_tool_calls,
        truncation=asked.truncation or "disabled",
        background=bool(asked.background),
        store=asked.store is not False,
        metadata=asked.metadata or {},
        safety_identifier=asked.safety_identifier,
        prompt_cache_key=asked.prompt_cache_key,
        prompt_cache_retention=asked.prompt_cache_retention or msgspec.UNSET,
        prompt_cache_options=_cache_options(asked.prompt_cache_options),
        user=asked.user,
        skipped_tools=skipped or msgspec.UNSET,
    )


class _Tool(msgspec.Struct):
    """The keys that a function has in a response, given or not."""

    type: str
    description: Any = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    strict: Any = msgspec.UNSET


_TOOL: Final = msgspec.json.Decoder(_Tool)


def _tool(given: msgspec.Raw) -> msgspec.Raw:
    """The tool as it is echoed. A copy, because a Raw keeps the whole frame it came from alive."""
    tool = _TOOL.decode(given)
    if tool.type == "mcp":
        return msgspec.Raw(msgspec.json.encode(without_secrets(msgspec.json.decode(given, type=dict[str, Any]))))
    missing = [name for name in ("description", "parameters", "strict") if getattr(tool, name) is msgspec.UNSET]
    if tool.type != "function" or not missing:
        return given.copy()
    nulls = "".join(f',"{name}":null' for name in missing)
    return msgspec.Raw(bytes(given)[:-1] + nulls.encode() + b"}")


def _text(text: Text | None) -> dict[str, Any]:
    text = text or Text()
    echoed: dict[str, Any] = {"format": text.format or PlainText()}
    if text.verbosity:
        echoed["verbosity"] = text.verbosity
    return echoed


def _reasoning(reasoning: Reasoning | None) -> dict[str, Any] | None:
    if reasoning is None:
        return None
    return {"effort": reasoning.effort, "summary": reasoning.wanted_summary}


def _cache_options(options: PromptCacheOptions | None) -> dict[str, str] | msgspec.UnsetType:
    if options is None:
        return msgspec.UNSET
    return {"mode": options.mode or "implicit", "ttl": options.ttl or "30m"}
