"""What a model of the contract server says: written by a test once, shaped as each of the routes has it.

The shapes are those that servers were seen to send: Cerebras (its SDK's types and a recorded stream), vLLM, and
llama.cpp's server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = dict[str, Any]
Dialect = Literal["cerebras", "vllm", "llamacpp"]

TIMES: Final[Json] = {
    "queue_time": 0.25, "prompt_time": 0.5, "completion_time": 1.0, "total_time": 1.75, "created": 1_700_000_000.0,
}  # fmt: skip
CREATED: Final = 1_700_000_000
_REASONING_FIELD: Final[dict[Dialect, str]] = {
    "cerebras": "reasoning", "vllm": "reasoning", "llamacpp": "reasoning_content",
}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """What one chunk of a raw route brings. is_hidden: llama.cpp's stream counts the ids, but leaves them out."""

    text: str = ""
    ids: tuple[int, ...] = ()
    is_hidden: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer. With a status of 400 or more it is `error` alone; else an error ends the stream after its chunks.

    deltas: one chunk each, on the chat route. pieces: the same on the raw ones. prompt_tokens: None counts the ids, or
    a quarter of the letters. usage_in: a chunk of its own, as Cerebras and vLLM have it, or the one that ends.
    cut_after: bytes of the answer, its head included, after which the connection is dropped. slice_bytes: it comes in
    slices of so many. first_after_s, between_s: of the chunks; inf never comes. has_end: whether anything says so.
    has_usage: whether tokens are counted at all.
    """

    deltas: Sequence[Json] = ()
    pieces: Sequence[Piece] = ()
    finish: str = "stop"
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage_in: Literal["own", "end"] = "own"
    times: Json | None = field(default_factory=lambda: dict(TIMES))
    status: int = 200
    error: Json | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    slice_bytes: int | None = None
    first_after_s: float = 0.0
    between_s: float = 0.0
    has_end: bool = True
    has_usage: bool = True

    def usage(self, prompt_tokens: int) -> Json:
        """The counts of an answer to a prompt of so many tokens."""
        prompt = prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        num_ids = sum(len(piece.ids) for piece in self.pieces)
        completion = self.completion_tokens if self.completion_tokens is not None else num_ids or len(self.deltas)
        counts: Json = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens is not None:
            counts["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return counts


# --- deltas of the chat route -------------------------------------------------------------------------------------


def said(*texts: str) -> list[Json]:
    """Text, a chunk each."""
    return [{"content": text} for text in texts]


def thought(*texts: str) -> list[Json]:
    """Reasoning, a chunk each, under Cerebras's name; other dialects' answers get theirs."""
    return [{"reasoning": text} for text in texts]


CallShape = Literal["whole", "split", "no_index", "no_id", "bare"]


def called(
    name: str, arguments: str, *, call_id: str = "call_1", index: int = 0, shape: CallShape = "whole"
) -> list[Json]:
    """A call: in one chunk, or its name first and its arguments letter by letter.

    `no_index`, `no_id` and `bare` (neither): whole, without what the name says.
    """
    if shape == "split":
        head = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": letter}} for letter in arguments]
        return [{"tool_calls": [part]} for part in (head, *rest)]
    call: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if shape not in ("no_index", "bare"):
        call["index"] = index
    if shape not in ("no_id", "bare"):
        call["id"] = call_id
    return [{"tool_calls": [call]}]


# --- the routes' shapes -------------------------------------------------------------------------------------------


class Shape:
    """The JSON of one answer on one route: chunks of a stream, or the whole."""

    def __init__(self, answer: Answer, dialect: Dialect, asked: Json, prompt_tokens: int) -> None:
        self.answer = answer
        self.dialect = dialect
        self.asked = asked
        self.usage = answer.usage(prompt_tokens)

    def chunks(self) -> Iterator[Json]:
        """Everything that is streamed, but for `[DONE]`."""
        yield from self.parts()
        if self.answer.error is not None:
            yield error_chunk(self.answer.error, self.dialect)
        elif self.answer.has_end:
            yield from self.end()

    def parts(self) -> Iterator[Json]:
        raise NotImplementedError

    def end(self) -> Iterator[Json]:
        """The chunk with the finish reason, and one with the counts."""
        end = self.chunk(self.last_choice())
        wants_usage = bool((self.asked.get("stream_options") or {}).get("include_usage"))
        has_counts = self.answer.has_usage and (wants_usage or self.dialect == "cerebras")
        counts = self.counts() if has_counts else self.timings()
        if self.answer.usage_in == "end" or not wants_usage:
            yield end | counts
        else:
            yield end
            yield self.chunk(None) | counts

    def counts(self) -> Json:
        times = {} if self.answer.times is None or self.dialect != "cerebras" else {"time_info": self.answer.times}
        return {"usage": self.usage} | times | self.timings()

    def timings(self) -> Json:
        if self.dialect != "llamacpp":
            return {}
        cached = self.answer.cached_tokens
        new = self.usage["prompt_tokens"] - cached
        predicted = self.usage["completion_tokens"]
        return {
            "timings": {
                "cache_n": cached, "prompt_n": new, "prompt_ms": 500.0, "predicted_n": predicted, "predicted_ms": 1000.0
            }
        }  # fmt: skip

    def chunk(self, choice: Json | None) -> Json:
        raise NotImplementedError

    def last_choice(self) -> Json:
        raise NotImplementedError

    def whole(self) -> Json:
        raise NotImplementedError

    def head(self, id_: str, object_: str) -> Json:
        model = self.asked.get("model", "test-model")
        return {"id": id_, "object": object_, "created": CREATED, "model": model, "system_fingerprint": "fp_1"}


class ChatShape(Shape):
    """`/v1/chat/completions`."""

    def parts(self) -> Iterator[Json]:
        for number, delta in enumerate(self.answer.deltas):
            role = {} if number else {"role": "assistant"}
            yield self.chunk({"index": 0, "delta": role | self._own(delta), "finish_reason": None})

    def _own(self, delta: Json) -> Json:
        """The delta as the dialect has it: Cerebras names the type of a call in every part of it."""
        own = {_REASONING_FIELD[self.dialect] if key == "reasoning" else key: value for key, value in delta.items()}
        if self.dialect == "cerebras" and "tool_calls" in own:
            own["tool_calls"] = [{"type": "function"} | call for call in own["tool_calls"]]
        return own

    def chunk(self, choice: Json | None) -> Json:
        return self.head("chatcmpl-1", "chat.completion.chunk") | {"choices": [] if choice is None else [choice]}

    def last_choice(self) -> Json:
        return {"index": 0, "delta": {}, "finish_reason": self._finish()}

    def _finish(self) -> str:
        has_calls = any("tool_calls" in delta for delta in self.answer.deltas)
        return "tool_calls" if has_calls and self.answer.finish == "stop" else self.answer.finish

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": None}
        for delta in self.answer.deltas:
            for key, value in self._own(delta).items():
                message[key] = value if message.get(key) is None else message[key] + value
        choice = {"index": 0, "message": message, "finish_reason": self._finish()}
        return self.head("chatcmpl-1", "chat.completion") | {"choices": [choice]} | self.counts()


class CompletionShape(Shape):
    """`/v1/completions`: Cerebras gives ids in place of the text, vLLM beside it."""

    def parts(self) -> Iterator[Json]:
        for piece in self.answer.pieces:
            yield self.chunk(self._choice(piece, None))

    def _choice(self, piece: Piece, finish: str | None) -> Json:
        choice = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.dialect == "cerebras" and self.asked.get("return_raw_tokens"):
            return choice | {"tokens": list(piece.ids)}
        if self.dialect == "vllm" and self.asked.get("return_token_ids"):
            return choice | {"text": piece.text, "token_ids": list(piece.ids)}
        return choice | {"text": piece.text}

    def chunk(self, choice: Json | None) -> Json:
        return self.head("cmpl-1", "text_completion") | {"choices": [] if choice is None else [choice]}

    def last_choice(self) -> Json:
        return self._choice(Piece(), self.answer.finish)

    def whole(self) -> Json:
        return self.chunk(self._choice(joined(self.answer.pieces), self.answer.finish)) | self.counts()


class LlamaShape(Shape):
    """llama.cpp's own `/completion`."""

    def parts(self) -> Iterator[Json]:
        count = 0
        for piece in self.answer.pieces:
            count += len(piece.ids)
            if not piece.is_hidden:
                yield self._part(piece, count) | {"stop": False}

    def _part(self, piece: Piece, count: int) -> Json:
        ids = list(piece.ids) if self.asked.get("return_tokens") else []
        evaluated = self.usage["prompt_tokens"]
        part = {"index": 0, "content": piece.text, "tokens": ids, "id_slot": -1}
        return part | {"tokens_predicted": count, "tokens_evaluated": evaluated}

    def end(self) -> Iterator[Json]:
        yield self._ended(Piece())

    def _ended(self, piece: Piece) -> Json:
        stop = {"stop": "eos", "length": "limit"}.get(self.answer.finish, "none")
        count = self.usage["completion_tokens"]
        end = {"stop": True, "stop_type": stop, "stopping_word": "", "truncated": False, "model": "test-model"}
        return self._part(piece, count) | {"id_slot": 0} | end | self.timings()

    def whole(self) -> Json:
        return self._ended(joined(self.answer.pieces))


def joined(pieces: Sequence[Piece]) -> Piece:
    """All of it as one."""
    return Piece("".join(piece.text for piece in pieces), tuple(id_ for piece in pieces for id_ in piece.ids))


# --- errors -------------------------------------------------------------------------------------------------------


def problem(message: str, code: str, *, kind: str = "invalid_request_error", param: str | None = None) -> Json:
    """An error's four fields."""
    return {"message": message, "type": kind, "param": param, "code": code}


def queue_exceeded() -> Json:
    """What Cerebras says with a 429 under load."""
    message = "We're experiencing high traffic right now! Please try again soon."
    return problem(message, "queue_exceeded", kind="too_many_requests_error", param="queue")


def error_chunk(error: Json, dialect: Dialect) -> Json:
    """An error in the place of a chunk."""
    if dialect == "cerebras":
        return {"error": error | {"id": "err_1"}, "status_code": 500}
    return {"error": error}


def error_body(error: Json, dialect: Dialect, status: int) -> Json:
    """The body of an answer that is an error: Cerebras's is flat, others wrap it."""
    match dialect:
        case "cerebras":
            return error
        case "vllm":
            return {"error": error | {"code": status}}
        case "llamacpp":
            return {"error": {"code": status, "message": error["message"], "type": error["type"]}}
