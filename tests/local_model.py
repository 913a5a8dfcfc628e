"""A prompt without templates, for tests of the local backend: items are user messages whose text is numbers."""

from collections.abc import Sequence
from pathlib import Path

from engine.backends.base import Delta, Extension, RunSpec, StepSpec, TextDelta
from engine.backends.chance import Chance
from engine.backends.constraint import Constraint
from engine.backends.local import LocalModel
from engine.items import Answer, Item, Message
from engine.tokens import Span, TokenLog
from tests.tiny import CONTEXT_WINDOW, STOP_ID

MODEL_ID = "tiny"


class NumbersParser:
    """Says each id as a number."""

    num_calls = 0
    num_reasoning = 0

    def feed(self, ids: Sequence[int], chances: Sequence[Chance] | None = None) -> list[Delta]:
        return [TextDelta("".join(f"{id_} " for id_ in ids))]

    def close(self, *, is_cut: bool = False) -> list[Delta]:
        return []


class NumbersPrompt:
    """A context of the ids that its items name; every turn of the model begins with id 1."""

    def __init__(self, constraint: Constraint | None = None) -> None:
        self.tokens = TokenLog()
        self._constraint = constraint

    async def prepare(self, items: Sequence[Item]) -> Extension:
        ids = [int(word) for item in items if isinstance(item, Message) for word in str(item.content).split()]
        return Extension(len(self.tokens), len(items), len(ids), ids)

    async def foresee(self, items: Sequence[Answer]) -> list[int]:
        return [int(word) for item in items for word in str(getattr(item, "output", "")).split()]

    def commit(self, extension: Extension) -> None:
        self.tokens.give(extension.token_ids)

    def open_turn(self) -> list[int]:
        self.tokens.give([1])
        return [1]

    def sampled(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.tokens.sample(ids, logprobs)

    def constraint(self, step: StepSpec) -> Constraint | None:
        return None if step.is_summary else self._constraint

    def new_parser(self, step: StepSpec) -> NumbersParser:
        return NumbersParser()

    def fork(self) -> "NumbersPrompt":
        twin = NumbersPrompt(self._constraint)
        twin.tokens = self.tokens.copy()
        return twin

    def restart(self) -> None:
        self.tokens.start_segment()

    def restore(self, spans: Sequence[Span]) -> None:
        self.tokens.extend(spans)


def message(ids: Sequence[int]) -> Message:
    """An item that renders to these ids."""
    return Message(role="user", content=" ".join(map(str, ids)))


def local_model(folder: Path, *, context_window: int = CONTEXT_WINDOW) -> LocalModel:
    """The tiny model as the backend wants it described; greedy by default."""
    return LocalModel(folder=folder, id=MODEL_ID, context_window=context_window, stop_ids=(STOP_ID,))


def spec(**fields: object) -> RunSpec:
    return RunSpec(response_id="resp_1", model=MODEL_ID, **fields)  # type: ignore[arg-type]
