"""The seam to a model: items in, deltas out.

The loop opens one Sequence per run and then repeats: `prepare` the new items (render, tokenise, check that they fit),
`commit` them, `start_step`, `next_deltas` until a StepEnd arrives. Between two steps the sequence rests with
everything it knows (tokens, KV cache, parser); nothing on this seam takes the history again, but for `restart` (the
context is to become another one) and `restore` (the process that knew it is gone).
"""

from collections.abc import Sequence as ListOf
from typing import Any, Literal, Protocol

import msgspec

from engine.backends.rate_limit import RateLimit
from engine.content import TokenLogprob
from engine.errors import BackendError, NotFound
from engine.items import Answer, Item
from engine.safety.verdict import Finding
from engine.tokens import Span, TokenLog
from engine.toolspec import Tool
from engine.usage import Timing, Usage

# --- what the loop asks for --------------------------------------------------------------------------------------


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same over a run. Values are checked before they get here; None means the model's default."""

    response_id: str
    model: str
    instructions: str | None = None
    tools: list[Tool] = []
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    text_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """`mode` as in the API; `allowed` names the tools that may be called (None: all).

    `is_named`: one tool was named, so `allowed` holds only until the call, while a list of allowed tools stays.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    allowed: frozenset[str] | None = None
    is_named: bool = False


class StepSpec(msgspec.Struct, frozen=True):
    """One sampling step. `max_tokens` is what is left of the run's `max_output_tokens`, None for no limit.

    is_summary: what the context says, in free text; neither tools nor a text format count. top_logprobs: give
    log-probabilities with the text and in the token log, and so many of the likeliest tokens with each (0 to 20); None
    for none. They are the model's own, before grammar, penalties and temperature.
    """

    tool_choice: ToolChoice = ToolChoice()
    max_tokens: int | None = None
    is_summary: bool = False
    top_logprobs: int | None = None


class Extension(msgspec.Struct, frozen=True):
    """Rendered and tokenised items, ready to be committed at context length `base`.

    `token_ids` is empty for backends that have no tokenizer; `num_tokens` is then their estimate.
    """

    base: int
    num_items: int
    num_tokens: int
    token_ids: ListOf[int] = ()
    render_ms: float = 0.0
    tokenize_ms: float = 0.0
    payload: Any = None


class Past(msgspec.Struct, frozen=True):
    """What a sequence at rest between two steps has been through; enough to make another one like it.

    spans: its token log from the beginning, all segments; empty on backends that see no tokens. rounds: the items given
    before each step, one round a step, oldest first; not what replaced the context after a restart, and not summaries
    and what asked for them. num_tokens: the length of the context, for backends that see no tokens. items: all that the
    context holds, what the model said included, for backends whose context is made of that.
    """

    spans: list[Span]
    rounds: list[list[Item]]
    num_tokens: int
    items: list[Item] = []


# --- what comes back ---------------------------------------------------------------------------------------------


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str


class TextDelta(msgspec.Struct, frozen=True):
    """`logprobs`: the tokens that this text begins or goes on with, each with the first text that has a part of it.

    Empty unless the step asked for them, and on backends that have no probabilities.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


CallType = Literal[
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
    "tool_search_call",
    "mcp_approval_request",
]


class CallStart(msgspec.Struct, frozen=True):
    """The model begins a call. Text that follows belongs to it until CallEnd."""

    type: CallType
    name: str
    namespace: str | None = None
    server_label: str | None = None


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of the call's arguments as JSON text, or of a custom tool's free input."""

    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The call is whole: its arguments can be parsed."""


Reason = Literal["stop", "max_output_tokens", "context_length_exceeded", "content_filter"]


class StepEnd(msgspec.Struct, frozen=True):
    """The model stopped. `usage` and `timing` are this step's; timing here has prefill and sampling only.

    reason: `stop` (its own end), `max_output_tokens` (the step's limit), `context_length_exceeded` (no room),
    `content_filter`. blocked_by: the finding of ours behind that; None for the filter of a service.
    """

    reason: Reason
    usage: Usage = Usage()
    timing: Timing = Timing()
    blocked_by: Finding | None = None


Delta = ReasoningDelta | TextDelta | CallStart | CallDelta | CallEnd | StepEnd


def model_not_found(model: str) -> NotFound:
    """The error of a model that no backend here has."""
    return NotFound(f"The model '{model}' does not exist.", param="model", code="model_not_found")


def model_unavailable(model: str) -> BackendError:
    """The error of a model whose service is not there."""
    return BackendError(
        f"The model '{model}' is not available: its service is not there. Try again later, or another model.",
        param="model",
        status=503,
    )


class ModelInfo(msgspec.Struct, frozen=True):
    """One entry of `GET /v1/models`. unavailable: why no run with it can start now."""

    id: str
    created: int
    owned_by: str = "longloop"
    object: Literal["model"] = "model"
    unavailable: str | msgspec.UnsetType = msgspec.UNSET


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What the `model` of a request means, once and for the whole run.

    id: the one name that it goes by. temperature, top_p, max_output_tokens, effort (of reasoning): for a run that names
    none; None leaves it to the backend. output_limit: the most that a run may ask for. max_runs: open at a time.
    """

    id: str
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    effort: str | None = None
    output_limit: int | None = None
    max_runs: int | None = None


# --- the two protocols -------------------------------------------------------------------------------------------


class Sequence(Protocol):
    """One run's context on a backend. Used by one task at a time, but for `prepare`, `cancel_step` and `close`."""

    @property
    def tokens(self) -> TokenLog:
        """The token log; stays empty on backends that see no tokens."""

    @property
    def num_context_tokens(self) -> int:
        """Length of the context in tokens, exact or estimated."""

    @property
    def num_turn_tokens(self) -> int:
        """Tokens that open the model's turn: they join a context that was given something when a step starts."""

    async def prepare(self, items: ListOf[Item]) -> Extension:
        """Render and tokenise new items at the present end of the context; changes nothing.

        Cost follows the new items only. Raises RequestError `context_length_exceeded` when they do not fit, and
        RequestError with a path from `[i]` on for content that the model cannot take.
        """

    def commit(self, extension: Extension) -> None:
        """Make an extension part of the context. Raises ValueError when the context has moved since `prepare`."""

    async def foresee(self, outputs: ListOf[Answer]) -> None:
        """The next extension will begin with these outputs, whose last one may still grow: a chance to compute.

        For a sequence at rest. Changes nothing that anybody can see; what is not true after all costs time only.
        """

    def start_step(self, step: StepSpec) -> None:
        """Begin to sample. The backend may take what is committed but not computed through the model first."""

    async def next_deltas(self) -> list[Delta]:
        """Wait for more of the step: at least one delta, all that are there. The step's last is a StepEnd.

        Raises BackendError when the model failed; the sequence can then only be closed.
        """

    def cancel_step(self) -> None:
        """Stop sampling as soon as possible, during prefill too. No further `next_deltas` for this step."""

    def interrupt(self) -> list[Delta]:
        """Stop sampling now and keep what was sampled: its last deltas, and a StepEnd (`stop`) at the end.

        What was begun stays as it is: a call that was cut has no CallEnd. The context is at rest. To be called by the
        task that reads the step, when no `next_deltas` waits. Raises ValueError without a step, BackendError when the
        model has failed.
        """

    # The next three are for a sequence at rest: they raise ValueError during a step, and when it is closed.

    def fork(self, response_id: str) -> "Sequence":
        """Another sequence with this context, token for token, for another run with these settings.

        Both go on independently. A seed that the run was given is the fork's too; without one it draws its own way.
        """

    def restart(self) -> None:
        """Begin a new segment: the context is empty, and the next `prepare` renders instructions and tools again.

        What is committed next stands for what was there before; it tells the model nothing new.
        """

    def restore(self, past: Past) -> None:
        """Make this new sequence go on where another one was, under the same settings, token for token.

        Raises ValueError when it is not new, or for a past that does not end with a step of this backend.
        """

    def close(self) -> None:
        """The run is over: its KV may be dropped or kept as a reusable prefix."""


class Backend(Protocol):
    """A source of sequences. Opened by the server for its whole life, as an async context manager."""

    @property
    def is_ready(self) -> bool:
        """Whether a sequence opened now would be sampled without waiting for a model to load."""

    async def wait_ready(self) -> None:
        """Wait until `is_ready`. Raises BackendError with the reason when the model could not be loaded."""

    def models(self) -> list[ModelInfo]:
        """The models it serves; the first is the default."""

    def resolve(self, model: str | None) -> Route:
        """What a request's `model` means; None is the default. Raises NotFound, `model_not_found`."""

    def rate_limits(self, model: str) -> tuple[RateLimit, ...]:
        """What is known to be left of the limits on what is behind a route's id, the fullest first; often nothing."""

    def open_sequence(self, spec: RunSpec) -> Sequence:
        """A sequence with nothing in it but what `spec` says (instructions and tools).

        `spec.model` is the id of a route. Raises NotFound when that is gone, or RequestError for a setting that it
        cannot honour.
        """
