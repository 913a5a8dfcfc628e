"""What Codex is told of the limits that a service has on its models."""

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from engine.backends.rate_limit import RateLimit
from engine.server.rate_limits import rate_limits_frame
from tests.chat_route import open_chat
from tests.contract_answers import Answer, Json, said
from tests.contract_server import ContractServer
from tests.served import open_served

CODEX = [(b"originator", b"codex_exec")]


def told(remaining: int) -> Answer:
    """An answer whose head tells of a limit."""
    limit = {"x-ratelimit-limit-tokens-minute": "100", "x-ratelimit-remaining-tokens-minute": str(remaining)}
    return Answer(deltas=said("hi"), headers=limit)


def test_a_frame_has_two_of_them_in_whole_numbers() -> None:
    limits = (
        RateLimit(name="requests-second", limit=10, remaining=1, reset_s=0.7),
        RateLimit(name="tokens-day", limit=100, remaining=50),
        RateLimit(name="tokens-hour", limit=100, remaining=90),
    )
    assert json.loads(rate_limits_frame(limits, 1000.0)) == {
        "type": "codex.rate_limits",
        "rate_limits": {
            "primary": {"used_percent": 90.0, "window_minutes": 1, "reset_at": 1001},
            "secondary": {"used_percent": 50.0, "window_minutes": 1440},
        },
        "limit_name": "requests-second",
    }
    odd = json.loads(rate_limits_frame((RateLimit(name="odd", limit=0, remaining=0),), 0.0))
    assert odd["rate_limits"] == {"primary": {"used_percent": 100.0}}


@asynccontextmanager
async def open_frames(answers: list[Answer], headers: Any) -> Any:
    """Asks once for each answer; all frames of each."""
    steps: list[list[Json]] = []
    with trio.fail_after(20):
        async with (
            open_chat(ContractServer(answers)) as backend,
            open_served(backend=backend, lifecycle="chain") as server,
            server.connect(headers=headers) as client,
        ):
            for _ in answers:
                await client.create(tools=[])
                steps.append(await client.step())
    yield steps


async def test_codex_is_told_before_the_terminal_when_they_have_changed() -> None:  # P130
    async with open_frames([told(40), told(40), told(10)], CODEX) as steps:
        shown = [[f for f in frames if f["type"] == "codex.rate_limits"] for frames in steps]
        assert [len(frames) for frames in shown] == [1, 0, 1]
        assert [frames[0]["rate_limits"]["primary"]["used_percent"] for frames in shown if frames] == [60.0, 90.0]
        assert steps[0][-2]["type"] == "codex.rate_limits" and steps[0][-1]["type"] == "response.completed"


@pytest.mark.parametrize(("answer", "headers"), [(told(40), None), (Answer(deltas=said("hi")), CODEX)])
async def test_nobody_else_is_and_nothing_is_made_up(answer: Answer, headers: Any) -> None:
    async with open_frames([answer], headers) as steps:
        assert "codex.rate_limits" not in [frame["type"] for frame in steps[0]]
