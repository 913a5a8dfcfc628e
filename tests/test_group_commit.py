"""group_commit.py: the queue, the thread, the windows in which it commits, and what happens when the disk fails.

No mock clock here: it would not wait for a thread.
"""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from engine.errors import NotFound, ServerError
from engine.group_commit import GroupCommit, open_group_commit

LONG_MS = 3_600_000


class Notes:
    """A database that is a list of words. It says when a transaction ends, and can be told to fail."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.fail_on: set[str] = set()
        self.fail_commit = False
        self.is_closed = False
        self.committed = threading.Event()
        self.hang = threading.Event()  # while it is not set
        self.hang.set()
        self.trials: list[int] = []  # in bytes
        self._words: list[str] = []

    @property
    def words(self) -> list[str]:
        return [word for words in [*self.commits, self._words] for word in words]

    def begin(self) -> None:
        assert self._words == []

    def commit(self) -> None:
        self.hang.wait(20)
        if self.fail_commit:
            raise OSError("disk I/O error")
        self.commits += [self._words]
        self._words = []
        self.committed.set()

    def rollback(self) -> None:
        self._words = []

    def try_to_write(self, num_bytes: int) -> None:
        self.trials.append(num_bytes)
        if self.fail_commit:
            raise OSError("disk I/O error")

    def close(self) -> None:
        self.is_closed = True

    def note(self, word: str) -> None:
        self._words.append(word)
        if word in self.fail_on:
            raise OSError(f"no room for {word}")


def note(word: str) -> Callable[[Notes], None]:
    return lambda db: db.note(word)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@asynccontextmanager
async def opened(notes: Notes, commit_ms: int = LONG_MS, **limits: Any) -> AsyncIterator[GroupCommit[Notes]]:
    with trio.fail_after(20):
        async with open_group_commit("notebook", notes, commit_ms, **limits) as disk:
            yield disk


async def test_puts_of_a_window_share_a_commit(notes: Notes) -> None:
    async with opened(notes, commit_ms=300) as disk:
        for number in range(100):
            disk.put("a", note(str(number)))
        await trio.to_thread.run_sync(notes.committed.wait, 20)
        assert [len(commit) for commit in notes.commits] == [100]


async def test_who_waits_shortens_the_window(notes: Notes) -> None:
    async with opened(notes) as disk:
        disk.put("a", note("one"))
        await disk.wait_durable()
        assert notes.commits == [["one"]]


async def test_what_was_put_is_seen_by_who_asks_later(notes: Notes) -> None:
    async with opened(notes) as disk:
        disk.put("a", note("one"))
        assert await disk.ask(lambda db: db.words) == ["one"]
        disk.put("a", note("two"))
        assert await disk.ask(lambda db: db.words) == ["one", "two"]


async def test_leaving_writes_what_is_queued_and_closes(notes: Notes) -> None:
    async with opened(notes) as disk:
        disk.put("a", note("one"))
    assert notes.commits == [["one"]]
    assert notes.is_closed
    with pytest.raises(ValueError, match="the notebook is closed"):
        disk.put("a", note("two"))


async def test_cancellation_writes_what_is_queued(notes: Notes) -> None:
    with trio.CancelScope() as scope:
        async with open_group_commit("notebook", notes, LONG_MS) as disk:
            disk.put("a", note("one"))
            scope.cancel()
            await trio.sleep_forever()
    assert notes.commits == [["one"]]


async def test_who_no_longer_waits_disturbs_nobody(notes: Notes) -> None:
    async with opened(notes) as disk:
        with trio.CancelScope() as scope:
            scope.cancel()
            await disk.wait_durable()
        disk.put("a", note("one"))
        assert await disk.ask(lambda db: db.words) == ["one"]


async def test_only_what_cannot_be_written_is_lost(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    notes.fail_on.add("too much")
    async with opened(notes) as disk:
        disk.put("good", note("one"))
        disk.put("bad", note("two"))
        disk.put("bad", note("too much"))
        disk.put("also good", note("three"))
        assert await disk.ask(lambda db: db.words) == ["one", "two", "three"]
        disk.put("bad", note("four"))
        assert await disk.ask(lambda db: db.words) == ["one", "two", "three"]
        assert await disk.ask(lambda db: disk.expect("good")) == "good"
        with pytest.raises(ServerError, match="The notebook failed"):
            await disk.ask(lambda db: disk.expect("bad"))
    assert [record.getMessage() for record in caplog.records] == ["the notebook lost bad"]


async def test_what_a_disk_that_hangs_has_no_room_for_is_lost(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(notes, commit_ms=0, max_bytes=10) as disk:
        notes.hang.clear()
        disk.put("a", note("one"), 6)
        disk.put("b", note("two"), 6)
        disk.put("c", note("three"), 4)
        disk.put("b", note("four"), 1)  # part of something that has lost a part
        notes.hang.set()
        await disk.wait_durable()
        assert notes.words == ["one", "three"]
        disk.put("d", note("five"), 10)
        await disk.wait_durable()
        assert notes.words == ["one", "three", "five"]
        with pytest.raises(ServerError, match="The notebook failed"):
            await disk.ask(lambda db: disk.expect("b"))
    said = "the notebook lost b: its disk does not keep up, 6 bytes wait to be written"
    assert [record.getMessage() for record in caplog.records] == [said, "the notebook can write again"]


async def test_error_for_who_asked_disturbs_nobody_else(notes: Notes) -> None:
    def refuse(db: Notes) -> Any:
        raise NotFound("There is no such word.")

    async with opened(notes) as disk:
        disk.put("a", note("one"))
        with pytest.raises(NotFound):
            await disk.ask(refuse)
    assert notes.words == ["one"]


async def test_commit_that_fails_is_heard_by_who_asked(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(notes) as disk:
        notes.fail_commit = True
        with pytest.raises(ServerError, match="The notebook failed"):
            await disk.wait_durable()
        notes.fail_commit = False
        disk.put("a", note("one"))
        await disk.wait_durable()
    assert notes.words == ["one"]
    assert "disk I/O error" in caplog.text


# --- whether the disk takes anything -----------------------------------------------------------------------------


async def test_a_disk_that_fails_says_so_until_it_takes_something_again(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(notes, retry_s=0.01) as disk:
        notes.fail_commit = True
        disk.put("a", note("one"), 1 << 20)
        with pytest.raises(ServerError):
            await disk.wait_durable()
        assert disk.failure == "disk I/O error"
        while len(notes.trials) < 3:  # nobody puts anything
            await trio.lowlevel.checkpoint()
        assert disk.failure == "disk I/O error"
        assert set(notes.trials) == {1 << 20}  # what was lost would have to fit
        notes.fail_commit = False
        while disk.failure is not None:
            await trio.lowlevel.checkpoint()
    said = [record.getMessage() for record in caplog.records]
    assert said.count("the notebook cannot write: disk I/O error") == 1
    assert said[-1] == "the notebook can write again"


async def test_a_disk_that_fails_is_tried_no_more_often_for_what_is_put(notes: Notes) -> None:
    async with opened(notes, retry_s=3600) as disk:
        notes.fail_commit = True
        for number in range(3):
            disk.put(str(number), note("one"))
            with pytest.raises(ServerError):
                await disk.wait_durable()
        assert len(notes.trials) == 1


async def test_a_loss_that_is_not_the_disks_says_nothing_of_it(notes: Notes) -> None:
    notes.fail_on.add("too much")
    async with opened(notes) as disk:
        disk.put("a", note("too much"))
        await disk.wait_durable()
        assert len(notes.trials) == 1
        assert disk.failure is None


async def test_a_disk_that_does_not_keep_up_says_so_until_it_does(notes: Notes) -> None:
    async with opened(notes, commit_ms=0, max_bytes=10) as disk:
        notes.hang.clear()
        disk.put("a", note("one"), 6)
        disk.put("b", note("two"), 6)
        assert disk.failure == "its disk does not keep up"
        notes.hang.set()
        while disk.failure is not None:
            await trio.lowlevel.checkpoint()
        assert notes.words == ["one"]


async def test_leaving_does_not_wait_for_a_disk_that_fails(notes: Notes) -> None:
    async with opened(notes, retry_s=3600) as disk:
        notes.fail_commit = True
        disk.put("a", note("one"))
    assert notes.is_closed
