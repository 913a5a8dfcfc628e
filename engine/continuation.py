"""The input of a run checked against what it goes on from.

What counts is only new: the server's own items that a client sends back are dropped, and so is an answer that repeats
one. Outputs for the earlier run's open calls come first, in the order of the calls, because that is what the model
asked for; all else keeps its order. Afterwards every output has its call and every call its output: a call that was
cut (`incomplete`), which nobody ran, is left out unless it has one.
"""

from dataclasses import dataclass, field

from engine.answers import Answers, check_type, no_call_found, second_answer
from engine.digests import same_answer
from engine.errors import RequestError
from engine.items import Answer, Call, Item, Message, Reasoning, ToolSearchCall, answer_key, call_key, item_id


@dataclass(frozen=True)
class Continuation:
    """The items that are new, and those of them that answer the earlier run's calls, by the calls' keys."""

    items: list[Item]
    answered: dict[str, Answer] = field(default_factory=dict)


def check_input(items: list[Item], before: Answers | None) -> Continuation:
    """What `items` add to a run. `before`: the calls and answers of the run it goes on from, if it does.

    Raises RequestError with a path from `input` on.
    """
    check = _Check(before)
    for index, item in enumerate(items):
        try:
            check.take(item)
        except RequestError as error:
            raise error.at(f"input[{index}]") from error
    return check.result()


class _Check:
    def __init__(self, before: Answers | None) -> None:
        self._before = before
        self._open = dict(before.open) if before else {}
        self._answered: dict[str, Answer] = {}
        self._calls: dict[str, Answer | None] = {}  # of this input, with what answers them
        self._cut: dict[str, Item] = {}
        self._others: list[Item] = []

    def take(self, item: Item) -> None:
        """Look at the next item."""
        if isinstance(item, Answer):
            self._take_answer(item)
        elif self._is_echo(item):
            return
        else:
            if isinstance(item, Call) and (key := call_key(item)) and _is_clients(item):
                self._calls.setdefault(key, None)
                if getattr(item, "status", None) == "incomplete":
                    self._cut[key] = item
            self._others.append(item)

    def result(self) -> Continuation:
        """Raises RequestError when a call has no output."""
        unanswered = [key for key, entry in self._open.items() if entry.is_clients and key not in self._answered]
        unanswered += [key for key, answer in self._calls.items() if answer is None and key not in self._cut]
        if unanswered:
            raise RequestError(f"No tool output found for function call {unanswered[0]}.", param="input")
        outputs = [self._answered.get(key) or entry.given for key, entry in self._open.items()]
        answered = {key: self._answered[key] for key in self._open if key in self._answered}
        left_out = {id(item) for key, item in self._cut.items() if self._calls[key] is None}
        others = [item for item in self._others if id(item) not in left_out]
        return Continuation([*(output for output in outputs if output is not None), *others], answered)

    def _take_answer(self, answer: Answer) -> None:
        key = answer_key(answer)
        if not key:
            raise RequestError("The output names no call.", param="call_id", code="missing_required_parameter")
        if key in self._calls:
            if self._is_new(key, self._calls[key], answer):
                self._calls[key] = answer
                self._others.append(answer)
        elif key in self._open and self._open[key].is_clients:
            check_type(self._open[key].call, answer)
            if self._is_new(key, self._answered.get(key), answer):
                self._answered[key] = answer
        elif self._before is None or not self._before.has_answer(key, answer):
            raise no_call_found(key, answer)

    def _is_new(self, key: str, earlier: Answer | None, answer: Answer) -> bool:
        if earlier is None:
            return True
        if same_answer(earlier, answer):
            return False
        raise second_answer(key, answer)

    def _is_echo(self, item: Item) -> bool:
        if self._before is None:
            return False
        if isinstance(item, Reasoning):  # one without an id may be the client's own
            return (own := item_id(item)) is not None and self._before.made_id(own)
        return not (isinstance(item, Message) and item.role != "assistant") and self._before.is_echo(item)


def _is_clients(call: Call) -> bool:
    """Whether the client is to answer this call; a search that the server makes brings its output by itself."""
    return not (isinstance(call, ToolSearchCall) and call.execution == "server")
