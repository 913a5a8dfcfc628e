"""Whose step may run now: as many as the KV budget has room for, first come first served, but always one.

A step that is admitted grows by every token it samples. When all together have outgrown the budget, the one that was
admitted last goes back to the head of the line: it loses its KV, never its tokens, and goes on when there is room.
Paused runs take no part in this: their KV gives way to running ones by itself (see kv_cache).

    ask ──▶ WAITING ──admit──▶ RUNNING ──end──▶ gone          RUNNING ──outgrown──▶ WAITING, at the head
"""

from typing import Final

# A step is not admitted just to be sent back a few tokens later.
_ROOM_TO_GROW: Final = 64


class Admission:
    """Steps by job number, and how many tokens each one's context has."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._running: dict[int, int] = {}  # in the order of admission
        self._waiting: dict[int, int] = {}  # in the order in which they get their turn
        self._num_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def set_budget(self, max_tokens: int) -> None:
        """Change the budget; `admit` and `outgrown` say what follows from it."""
        self._max_tokens = max_tokens

    def ask(self, job: int, num_tokens: int) -> None:
        """A step over a context of so many tokens wants to run."""
        self._waiting[job] = num_tokens

    def ask_again(self, job: int, num_tokens: int) -> None:
        """A step that was sent back wants to run; nobody is before it."""
        self._waiting = {job: num_tokens} | self._waiting

    def admit(self) -> list[int]:
        """Those whose turn it is. Nobody overtakes: a long context that waits would wait for ever."""
        admitted = []
        for job, num_tokens in self._waiting.items():
            if self._running and self._num_tokens + num_tokens + _ROOM_TO_GROW > self._max_tokens:
                break
            self._running[job] = num_tokens
            self._num_tokens += num_tokens
            admitted.append(job)
        for job in admitted:
            del self._waiting[job]
        return admitted

    def grown(self, job: int, num_tokens: int) -> None:
        """A running step's context has so many tokens now; that of another is none of our business."""
        if job in self._running:
            self._num_tokens += num_tokens - self._running[job]
            self._running[job] = num_tokens

    def outgrown(self) -> list[int]:
        """Running steps that must be sent back, last admitted first. They run no more, and have to ask again."""
        sent_back = []
        while self._num_tokens > self._max_tokens and len(self._running) > 1:
            job = next(reversed(self._running))
            self.end(job)
            sent_back.append(job)
        return sent_back

    def end(self, job: int) -> None:
        """The step is over, or wanted no more; no such step is no error."""
        self._num_tokens -= self._running.pop(job, 0)
        self._waiting.pop(job, None)

    def clear(self) -> None:
        """The worker died: all have to ask again."""
        self._running.clear()
        self._waiting.clear()
        self._num_tokens = 0
