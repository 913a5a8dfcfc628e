"""A sequence that tells when it is closed, so that its backend can be when the last one is."""

from collections.abc import Sequence as ListOf
from typing import Protocol

from engine.backends.base import Delta, Extension, Past, Sequence, StepSpec
from engine.items import Answer, Item
from engine.tokens import TokenLog


class Lease(Protocol):
    """What is held open by sequences."""

    def take(self) -> None:
        """One more."""

    def give_back(self) -> None:
        """One less."""


class RoutedSequence:
    """See base.Sequence; everything is the inner one's doing."""

    def __init__(self, inner: Sequence, lease: Lease) -> None:
        self._inner = inner
        self._lease = lease
        self._is_closed = False
        lease.take()

    @property
    def tokens(self) -> TokenLog:
        return self._inner.tokens

    @property
    def num_context_tokens(self) -> int:
        return self._inner.num_context_tokens

    @property
    def num_turn_tokens(self) -> int:
        return self._inner.num_turn_tokens

    async def prepare(self, items: ListOf[Item]) -> Extension:
        return await self._inner.prepare(items)

    def commit(self, extension: Extension) -> None:
        self._inner.commit(extension)

    async def foresee(self, outputs: ListOf[Answer]) -> None:
        await self._inner.foresee(outputs)

    def start_step(self, step: StepSpec) -> None:
        self._inner.start_step(step)

    async def next_deltas(self) -> list[Delta]:
        return await self._inner.next_deltas()

    def cancel_step(self) -> None:
        self._inner.cancel_step()

    def interrupt(self) -> list[Delta]:
        return self._inner.interrupt()

    def fork(self, response_id: str) -> "RoutedSequence":
        return RoutedSequence(self._inner.fork(response_id), self._lease)

    def restart(self) -> None:
        self._inner.restart()

    def restore(self, past: Past) -> None:
        self._inner.restore(past)

    def close(self) -> None:
        self._inner.close()
        if not self._is_closed:
            self._is_closed = True
            self._lease.give_back()
