"""A step read by transformers' own parser, where the model's folder says how (`response_template`) and we do not know.

Text and reasoning come as they are sampled, a call when it is whole. There are no log-probabilities beside the text:
the parser does not tell which characters a piece was.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from transformers.utils.chat_parsing import ResponseParser

from engine.backends.base import ReasoningDelta, TextDelta
from engine.backends.template import to_json
from engine.backends.text_reader import TextReader
from engine.backends.toolset import ToolSet
from engine.backends.vocabulary import Vocabulary

_THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking")


class TransformersParser(TextReader):
    """Parses one step. `tools` are those it may call: another call is text."""

    def __init__(
        self, vocabulary: Vocabulary, template: Mapping[str, Any], tools: ToolSet, header: str, stops: Iterable[int]
    ) -> None:
        """template: the folder's. header: what began the turn. stops: ids that end it and say nothing."""
        ends = set(stops)
        super().__init__(vocabulary, [tag for tag, token_id in vocabulary.controls.items() if token_id not in ends])
        self._tools = tools
        documents = [document for document, _ in tools.documents()]
        self._parser = ResponseParser(dict(template), prefix=header, tools=documents)
        self._body = ""  # of the call under way
        self._field = ""  # that is open

    @property
    def _is_thinking(self) -> bool:
        return self._field in _THOUGHTS

    def _advance(self) -> bool:
        text = self._split_held(len(self._held))
        try:
            events = self._parser.feed(text)
        except ValueError:  # a call that is none
            self._give_up()
            return False
        for event in events:
            self._on(event)
        return False

    def _finish(self, is_cut: bool) -> None:
        if is_cut and self._field == "tool_calls":
            return
        try:
            _, events = self._parser.finalize()
        except ValueError:
            self._give_up()
            return
        for event in events:
            self._on(event)

    def _on(self, event: Mapping[str, Any]) -> None:
        field = event["field"]
        self._field = "" if event["type"] == "region_close" else field
        match event["type"]:
            case "region_open":
                self._body = ""
            case "region_chunk" if field == "tool_calls":
                self._body += event["text"]
            case "region_chunk" if field in _THOUGHTS:
                self._emit(ReasoningDelta(event["text"]))
            case "region_chunk":
                self._emit(TextDelta(event["text"]))
            case "region_close" if field == "tool_calls":
                self._call(event["value"])

    def _call(self, value: Any) -> None:
        for call in value if isinstance(value, list) else [value]:
            function = call.get("function", call) if isinstance(call, dict) else {}
            tool = self._tools.by_label.get(str(function.get("name")))
            if tool is None:
                self._give_up()
                return
            arguments = function.get("arguments", {})
            self._start_call(tool)
            self._argue(arguments if isinstance(arguments, str) else to_json(arguments))
            self._end_arguments()
            self.num_calls += 1

    def _give_up(self) -> None:
        """What the call said, as text."""
        self._emit(TextDelta(self._body))
        self._body = ""
