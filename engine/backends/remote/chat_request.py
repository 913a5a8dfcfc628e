"""The fields of a chat completion's request, but for its messages: what a run asks for in the words of each service.

Only what the run names is sent. Services refuse fields that they do not know, and have defaults of their own.
"""

from typing import Any, Final, Literal

import msgspec

from engine.backends.base import RunSpec, StepSpec, ToolChoice
from engine.backends.remote.chat_messages import ReasoningField
from engine.backends.remote.chat_tools import ChatTools

ChatName = Literal["cerebras", "vllm", "llamacpp", "openai"]


class ChatDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a service wants to be asked.

    reasoning_field: what the model thought is given back under this name; None: not at all. limit_field: the most that
    is to be sampled. cache_key_field: requests with the same value share a prefix. warm_path: a GET that means nothing.
    efforts: the levels of reasoning that it knows, where other ones are put on those. names_tool: a choice may name one
    tool; else that one is offered alone.
    """

    reasoning_field: ReasoningField | None
    limit_field: str = "max_completion_tokens"
    cache_key_field: str | None = None
    warm_path: str | None = None
    efforts: frozenset[str] = frozenset({"none", "low", "medium", "high"})
    names_tool: bool = True


DIALECTS: Final[dict[ChatName, ChatDialect]] = {
    "cerebras": ChatDialect(reasoning_field="reasoning", cache_key_field="prompt_cache_key", warm_path="/tcp_warming"),
    "vllm": ChatDialect(reasoning_field="reasoning"),
    "llamacpp": ChatDialect(reasoning_field="reasoning_content", limit_field="max_tokens", names_tool=False),
    # Of whoever else speaks the API: strict ones refuse fields that they do not know.
    "openai": ChatDialect(
        reasoning_field=None,
        efforts=frozenset({"none", "minimal", "low", "medium", "high", "xhigh"}),
    ),
}
_NEAREST: Final = {"none": "none", "minimal": "low", "xhigh": "high", "max": "high"}


def run_fields(spec: RunSpec, dialect: ChatDialect) -> dict[str, Any]:
    """What is the same in all turns of a run."""
    fields: dict[str, Any] = {
        "model": spec.model,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "presence_penalty": spec.presence_penalty or None,
        "frequency_penalty": spec.frequency_penalty or None,
        "seed": spec.seed,
        "reasoning_effort": _effort(spec.reasoning_effort, dialect),
    }
    if dialect.cache_key_field is not None:
        fields[dialect.cache_key_field] = spec.response_id
    return {name: value for name, value in fields.items() if value is not None}


def _effort(effort: str | None, dialect: ChatDialect) -> str | None:
    return effort if effort is None or effort in dialect.efforts else _NEAREST.get(effort, effort)


def step_fields(spec: RunSpec, step: StepSpec, tools: ChatTools, dialect: ChatDialect) -> dict[str, Any]:
    """What is asked of one turn."""
    choice = ToolChoice("none") if step.is_summary else step.tool_choice
    about_tools = tools.fields(choice, names_tool=dialect.names_tool)
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} | about_tools
    if about_tools.get("tool_choice", "none") != "none" and not spec.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    if step.max_tokens is not None:
        fields[dialect.limit_field] = step.max_tokens
    if spec.text_format is not None and not step.is_summary:
        fields["response_format"] = _response_format(spec.text_format)
    if step.top_logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": step.top_logprobs}
    return fields


def _response_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """A Responses format has the schema's fields beside its type, a chat completion's in an object of their own."""
    if text_format["type"] != "json_schema":
        return {"type": text_format["type"]}
    return {"type": "json_schema", "json_schema": {name: text_format[name] for name in text_format if name != "type"}}
