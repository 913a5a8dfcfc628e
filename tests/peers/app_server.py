"""Codex's app-server: JSON-RPC over stdio, one object a line. Threads, turns and interrupts of one process."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import trio


class AppServer:
    """A running app-server. `notifications` are all that came, oldest first."""

    def __init__(self, process: trio.Process) -> None:
        self.notifications: list[dict[str, Any]] = []
        self._process = process
        self._answers: dict[int, dict[str, Any]] = {}
        self._num_requests = 0
        self._changed = trio.Event()

    async def start_thread(self) -> str:
        """A new conversation; its id."""
        answer = await self.request("thread/start", experimentalRawEvents=False, persistExtendedHistory=False)
        return str(answer["thread"]["id"])

    async def start_turn(self, thread_id: str, text: str, **settings: Any) -> str:
        """Say something; the turn's id. Settings hold for this turn and later ones: `effort`, `model`, `cwd`."""
        message = {"type": "text", "text": text, "text_elements": []}
        answer = await self.request("turn/start", threadId=thread_id, input=[message], **settings)
        return str(answer["turn"]["id"])

    async def wait_turn(self, turn_id: str) -> dict[str, Any]:
        """The turn once it is over: `status` and `error`."""
        done = await self.wait_notification("turn/completed", lambda params: params["turn"]["id"] == turn_id)
        turn: dict[str, Any] = done["turn"]
        return turn

    async def say(self, thread_id: str, text: str, **settings: Any) -> str:
        """A whole turn: the text that the user reads last. Fails unless the turn completed."""
        turn_id = await self.start_turn(thread_id, text, **settings)
        turn = await self.wait_turn(turn_id)
        assert turn["status"] == "completed", turn
        return self.final_text(turn_id)

    async def interrupt(self, thread_id: str, turn_id: str) -> None:
        """Interrupt a turn; it is over for the user then."""
        await self.request("turn/interrupt", threadId=thread_id, turnId=turn_id)
        turn = await self.wait_turn(turn_id)
        assert turn["status"] == "interrupted", turn

    def final_text(self, turn_id: str) -> str:
        """The last message of a turn."""
        done = [note["params"] for note in self.notifications if note["method"] == "item/completed"]
        texts = [
            params["item"]["text"]
            for params in done
            if params["turnId"] == turn_id and params["item"]["type"] == "agentMessage"
        ]
        return str(texts[-1])

    # --- JSON-RPC ---

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method. Fails with the error that came instead of a result."""
        self._num_requests += 1
        number = self._num_requests
        await self._send({"id": number, "method": method, "params": params})
        await self._wait_until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def notify(self, method: str) -> None:
        """Tell it something that has no answer."""
        await self._send({"method": method})

    async def wait_notification(
        self, method: str, is_wanted: Callable[[dict[str, Any]], bool] = lambda params: True
    ) -> dict[str, Any]:
        """The params of the first such notification, past ones included."""

        def found() -> list[dict[str, Any]]:
            notes = [note["params"] for note in self.notifications if note["method"] == method]
            return [params for params in notes if is_wanted(params)]

        await self._wait_until(lambda: bool(found()))
        return found()[0]

    async def read(self) -> None:
        """Take in what it prints, until it closes."""
        assert self._process.stdout is not None
        buffer = b""
        async for data in self._process.stdout:
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            assert "id" not in message, f"it asks us something: {message}"
            self.notifications.append(message)
        else:
            self._answers[message["id"]] = message
        self._changed.set()

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()


@asynccontextmanager
async def open_app_server(command: list[str], cwd: Path, env: dict[str, str]) -> AsyncIterator[AppServer]:
    """An initialised app-server; leaving the block kills it."""
    process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=str(cwd), env=env)
    assert process.stdin is not None and process.stdout is not None
    try:
        async with trio.open_nursery() as nursery:
            server = AppServer(process)
            nursery.start_soon(server.read)
            await server.request("initialize", clientInfo={"name": "longloop", "title": None, "version": "0"})
            await server.notify("initialized")
            yield server
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # killed, so it is over at once
            await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()
