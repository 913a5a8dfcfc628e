"""The client and a server that dies after any number of frames, its disk some writes behind, and is started anew."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from engine.client import RunFailed, open_run
from engine.store_fake import MemoryStore
from tests.served import Served, open_served
from tests.test_client_on_server import CHAT, SCENARIO, Cut, CutFrames, look


class Disk(MemoryStore):
    """A store that remembers the order of what was put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[Callable[[MemoryStore], None]] = []

    def put_start(self, *values: Any) -> None:
        super().put_start(*values)
        self.puts.append(lambda store: store.put_start(*values))

    def put_step(self, *values: Any) -> None:
        super().put_step(*values)
        self.puts.append(lambda store: store.put_step(*values))


class DyingServer:
    """A Connector to a server that is killed when its first connection breaks; then another one is there."""

    def __init__(self, servers: list[Served], disks: list[Disk], num_frames: int, num_unwritten: int) -> None:
        self._servers = servers
        self._disks = disks
        self._num_frames = num_frames
        self._num_unwritten = num_unwritten
        self.has_died = False

    @property
    def has_steps(self) -> bool:
        """Whether the second server knows of a step that has ended."""
        return len(self._disks[1].puts) > 1

    @asynccontextmanager
    async def open(self) -> AsyncIterator[CutFrames]:
        cut = Cut(self._servers[self.has_died], 10**6 if self.has_died else self._num_frames, "recv")
        async with cut.open() as connection:
            try:
                yield connection
            except Exception:
                self._die()
                raise

    def _die(self) -> None:
        """What is on the first server's disk is on the second one's, but for what was not written."""
        puts = self._disks[0].puts
        for put in puts[: max(len(puts) - self._num_unwritten, 0)]:
            put(self._disks[1])
        self.has_died = True


@asynccontextmanager
async def open_dying(scenario: str, num_frames: int, num_unwritten: int) -> AsyncIterator[DyingServer]:
    disks = [Disk(), Disk()]
    async with open_served(scenario, store=disks[0]) as first, open_served(scenario, store=disks[1]) as second:
        yield DyingServer([first, second], disks, num_frames, num_unwritten)


def expect_one_life_after_another(numbers: list[int]) -> None:
    """The numbers rise by one, but that they may be set back once."""
    breaks = [index for index in range(1, len(numbers)) if numbers[index] != numbers[index - 1] + 1]
    assert len(breaks) <= 1
    assert all(numbers[index] <= numbers[index - 1] for index in breaks)


@pytest.mark.parametrize("num_unwritten", range(3))
@pytest.mark.parametrize("num_frames", range(48))
async def test_run_goes_on_after_its_server_has_died(autojump_clock, num_frames, num_unwritten):  # P82, P83
    events = []
    with trio.fail_after(60):
        async with open_dying(SCENARIO, num_frames, num_unwritten) as server:
            try:
                async with open_run(
                    "ws://served", input="go", tools=[look], connector=server, on_event=events.append
                ) as run:
                    result = await run.result()
            except RunFailed as error:
                assert error.code in ("server_error", "response_not_found")
                assert server.has_died and not server.has_steps
                return
    assert result.text == "Done with thing 3."
    assert [item.type for item in result.output] == ["message", *["function_call"] * 3, "message"]
    assert [item["id"] for item in result.output] == list(dict.fromkeys(item["id"] for item in result.output))
    expect_one_life_after_another([event.sequence_number for event in events if "sequence_number" in event])


async def test_most_servers_above_die_in_the_middle_of_what_can_go_on(autojump_clock):
    """The test before is only worth something if runs are taken up, and from behind what the client has seen."""
    num_set_back = 0
    kills = range(10, 34, 4)  # later ones meet a run that has ended, which is read and not taken up
    for num_frames in kills:
        events: list[Any] = []
        async with (
            open_dying(SCENARIO, num_frames, 0) as server,
            open_run("ws://served", input="go", tools=[look], connector=server, on_event=events.append) as run,
        ):
            try:
                await run.result()
            except RunFailed:
                continue
        num_set_back += any(event.type == "response.resume.accepted" for event in events)
    assert num_set_back == len(kills)


@pytest.mark.parametrize("num_frames", range(14, 34))
async def test_streamed_output_is_given_again_from_its_beginning(autojump_clock, num_frames):  # P83
    async def count(n: int) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            yield word
            await trio.sleep(0.2)

    with trio.fail_after(60):
        async with open_dying(SCENARIO.replace("look", "count"), num_frames, 0) as server:
            try:
                async with open_run("ws://served", input="go", tools=[count], connector=server) as run:
                    result = await run.result()
            except RunFailed:
                assert not server.has_steps
                return
    assert result.text == "Done with one two three."


@pytest.mark.parametrize(("num_unwritten", "is_lost"), [(0, False), (1, True)])
@pytest.mark.parametrize("num_frames", range(22))
async def test_a_conversation_goes_on_unless_a_turn_is_lost(autojump_clock, num_frames, num_unwritten, is_lost):
    texts = []
    with trio.fail_after(60):
        async with open_dying(CHAT, num_frames, num_unwritten) as server:
            try:
                async with open_run("ws://served", input="one", keep_open=True, connector=server) as run:
                    texts.append((await run.result()).text)
                    for said in ("two", "three"):
                        await run.send(said)
                        texts.append((await run.result()).text)
            except RunFailed as error:
                assert error.code in ("server_error", "response_not_found", "turn_lost")
                assert (error.code == "turn_lost") is bool(texts)
                assert is_lost or not texts
                return
    assert texts == ["You said one.", "You said two.", "You said three."]
