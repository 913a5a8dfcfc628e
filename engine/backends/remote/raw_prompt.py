"""A run's context for a service that takes token ids, with the body of its requests, which grows as it does."""

from collections.abc import Sequence
from typing import Any

import trio

from engine.backends.base import RunSpec, StepSpec
from engine.backends.grammar import answer_schema
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.remote.dialect import Dialect
from engine.backends.remote.encoding import Encoding
from engine.backends.remote.growing import GrowingBody
from engine.backends.remote.hold import Hold, hold_to_answer, hold_to_call
from engine.backends.vocabulary import Span
from engine.errors import RequestError

_INLINE_IDS = 16_384  # a few milliseconds of encoding and compressing; more goes to a thread


class RawPrompt(Prompt):
    """See prompt.Prompt; what holds a step is said in a service's terms."""

    def __init__(self, form: PromptFormat, dialect: Dialect, spec: RunSpec) -> None:
        """Raises RequestError for what the service cannot be held to."""
        super().__init__(form, spec)
        self._dialect = dialect
        self._labels = self._tools.tools.by_label
        self._answer = answer_schema(spec.text_format)
        if self._answer is not None and not dialect.has_schemas:
            raise RequestError("This model's service cannot hold an answer to a format.", param="text.format")
        self.cache_key = spec.response_id
        self._grown: GrowingBody | None = None
        self._segment = 0

    # --- what holds a step

    def constraint(self, step: StepSpec) -> Hold | None:
        """None where the model decides. Raises RequestError for what cannot be held."""
        held = super().constraint(step)
        if held is None or held.mode != "always":
            return None
        labels = self._tools.tools.callable_under(step.tool_choice)
        if step.tool_choice.mode == "required":
            tools = {label: tool for label, tool in self._labels.items() if label in labels}
            return hold_to_call(tools, self._form.family, has_schemas=self._dialect.has_schemas)
        if self._answer is None:
            return None  # a turn that may call or talk: a service's model decides that by itself
        if not labels:
            return hold_to_answer(self._answer)
        opening = self._form.family.calls.open.strip()
        if not opening:  # calls begin as JSON answers do
            raise RequestError(
                "This model's service cannot hold an answer to a format while tools may be called; "
                "set tool_choice to none or required.",
                param="text.format",
            )
        return hold_to_answer(self._answer, opening)

    def ids_of(self, text: str) -> list[int]:
        """The ids of a text of ours, in which tags are meant."""
        return self._form.encode([Span(text, True)])

    def text_of(self, ids: Sequence[int]) -> str:
        """What ids stand for, tags included, as far as they are whole characters."""
        return b"".join(map(self._form.vocabulary.bytes_of, ids)).decode(errors="ignore")

    def is_control(self, token_id: int) -> bool:
        """Whether the id carries no text."""
        return self._form.vocabulary.is_control(token_id)

    # --- the request

    async def body(self, encoding: Encoding, fields: dict[str, Any]) -> bytes:
        """A request for what follows the context; cost follows what is new in it since the last one."""
        grown = self._grown
        if grown is None or grown.encoding != encoding or self._segment != self.tokens.segment:
            grown, self._segment = GrowingBody("prompt", encoding), self.tokens.segment
        new: Sequence[int] = list(self.tokens.context_from(len(grown)))
        if len(new) > _INLINE_IDS:
            await trio.to_thread.run_sync(grown.extend, new)
        else:
            grown.extend(new)
        self._grown = grown
        return grown.body(fields)

    def fork(self) -> "RawPrompt":
        twin = super().fork()
        assert isinstance(twin, RawPrompt)
        twin._grown = self._grown and self._grown.copy()
        return twin
