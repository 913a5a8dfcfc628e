"""What may be asked of a run: the fields that a `response.create` frame and the body of a POST have in common.

Every parameter of the API is here with its limits, so that none is overlooked: what the server cannot honour is refused
by name (`refuse_unsupported`) or has one value only, and what means nothing here is read and left alone. Unknown fields
are ignored. `null` is accepted wherever a field is optional. Wrong types, missing fields and values out of range raise
a RequestError that names the field by its JSON path.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from engine.errors import RequestError

Input = str | list[msgspec.Raw]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
# JSON knows integers of any size; what goes on to a worker or an index has 64 bits, and JavaScript's exact ones 53.
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
Includable = Literal[
    "response.tokens",  # ours
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    # Of images that are kept elsewhere there is nothing that these could add; those of hosted tools do (section 13).
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
]
_Summary = Literal["auto", "concise", "detailed"]


class Reasoning(msgspec.Struct, frozen=True):
    """`generate_summary` is the old name of `summary`."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: _Summary | None = None
    generate_summary: _Summary | None = None

    @property
    def wanted_summary(self) -> str | None:
        """The kind of summary, None for none."""
        return self.summary or self.generate_summary


class PlainText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class JsonObject(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    pass


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema", omit_defaults=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class Text(msgspec.Struct, frozen=True):
    format: PlainText | JsonObject | JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Compaction(msgspec.Struct, frozen=True):
    """One entry of `context_management`: compact the context when it is longer than this, in tokens."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, msgspec.Meta(ge=1000, le=2**53)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True):
    """`prewarm` is another way to say `generate: false`. The rest is echoed: the cache keeps what it has room for."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None


class _Conversation(msgspec.Struct, frozen=True):
    id: str


class _Image(msgspec.Struct, frozen=True):
    context_compression: Literal["auto", "disabled"] | None = None


class _AccessPrograms(msgspec.Struct, frozen=True):
    cyber: Literal["standard"] | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a run. `refused` names those that are known and that this server does not have."""

    # what the model is given
    model: str | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | _Conversation | None = None
    prompt: Any = None
    # what it may call
    tools: list[msgspec.Raw] | None = None
    tool_choice: msgspec.Raw = msgspec.Raw(b"null")
    parallel_tool_calls: bool | None = None
    max_tool_calls: Positive | None = None
    # how it is sampled. OpenAI takes no max_output_tokens below 16; a local model does as it is told.
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Natural | None = None
    stop: Any = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    # what is shown of it
    include: list[Includable] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    # what is kept of it
    store: bool | None = None
    background: bool | None = None
    background_options: dict[str, Any] | None = None
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[Compaction], msgspec.Meta(max_length=1)] | None = None
    prompt_cache_key: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    # whose it is
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    safety_identifier: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    user: str | None = None
    moderation: Any = None
    access_programs: _AccessPrograms | None = None
    image: _Image | None = None

    # `prompt` brings input of its own, `stop` and `moderation` cut the output: without them the answer is another one.
    refused: ClassVar[tuple[str, ...]] = ("prompt", "stop", "moderation")

    @property
    def is_prewarm(self) -> bool:
        """Whether nothing is to be sampled: the context is only prepared."""
        return bool(self.prompt_cache_options and self.prompt_cache_options.prewarm)

    @property
    def compact_threshold(self) -> int | None:
        """Length in tokens beyond which the context is compacted, None for never."""
        return self.context_management[0].compact_threshold if self.context_management else None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the run belongs to."""
        return self.conversation.id if isinstance(self.conversation, _Conversation) else self.conversation

    def includes(self, what: Includable) -> bool:
        """Whether the client asked to be shown this."""
        return what in (self.include or ())


def refuse_unsupported(asked: Parameters) -> None:
    """Raises RequestError for a parameter that is known and cannot be honoured."""
    for name in asked.refused:
        if getattr(asked, name) is not None:
            raise unsupported(name)
    if asked.conversation is not None and asked.store is False:
        raise RequestError("A conversation is stored, and so is what a response adds to it.", param="store")
    if asked.previous_response_id is not None and asked.conversation is not None:
        raise RequestError(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )


def unsupported(name: str) -> RequestError:
    """The refusal of a parameter by its name."""
    return RequestError(f"Unsupported parameter: '{name}'.", param=name, code="unsupported_parameter")
