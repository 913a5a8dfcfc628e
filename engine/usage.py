"""What a step and a run cost: token counts in the Responses API's shape, and phase times."""

import msgspec


class InputTokensDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one sampling step, or summed over a run.

    For a step, `input_tokens` is the whole context it sampled from and `cached_tokens` the part of it whose KV
    was already there. Both detail objects are always present, since Codex refuses a usage object without them.
    """

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return count_usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cached_tokens=self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens,
            reasoning_tokens=self.output_tokens_details.reasoning_tokens + other.output_tokens_details.reasoning_tokens,
        )


def count_usage(input_tokens: int, output_tokens: int, *, cached_tokens: int = 0, reasoning_tokens: int = 0) -> Usage:
    """A Usage whose total and details agree with its counts."""
    return Usage(
        input_tokens=input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens, input_tokens - cached_tokens),
        output_tokens=output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens),
        total_tokens=input_tokens + output_tokens,
    )


class Timing(msgspec.Struct, frozen=True, gc=False):
    """Where the time of a step (or of a run) went, in milliseconds, and how much of it was new work.

    `client_wait_ms` is the time the run spent paused for the client; `tokens_new` were given in this step,
    `tokens_reused` were already in the KV cache, `tokens_prefilled` went through the model without being sampled.
    `tokens_evicted` had been in the KV cache, and had to give way to other runs since the step before.
    """

    queue_ms: float = 0.0
    route_ms: float = 0.0
    validate_ms: float = 0.0
    classify_ms: float = 0.0
    render_ms: float = 0.0
    tokenize_ms: float = 0.0
    prefill_ms: float = 0.0
    sampling_ms: float = 0.0
    hosted_tools_ms: float = 0.0
    client_wait_ms: float = 0.0
    ledger_ms: float = 0.0
    items_new: int = 0
    tokens_new: int = 0
    tokens_reused: int = 0
    tokens_prefilled: int = 0
    tokens_evicted: int = 0

    def __add__(self, other: "Timing") -> "Timing":
        # Most are 0, and a sum that changes nothing would be another float for every paused run to keep.
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return Timing(*(mine + theirs if theirs else mine for mine, theirs in pairs))


def rounded(timing: Timing) -> Timing:
    """The same with times to the microsecond, which keeps frames short."""
    fields = msgspec.structs.asdict(timing).items()
    changes = {name: round(value, 3) for name, value in fields if value and isinstance(value, float)}
    return msgspec.structs.replace(timing, **changes)
