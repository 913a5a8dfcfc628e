"""model_judge.py and worker.py: a classifier in a process of its own, and what becomes of questions when it dies."""

import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.errors import BackendError
from engine.safety.model_judge import ModelJudge, open_model_judge
from engine.safety.policies import Scores

FAKE = (sys.executable, "-m", "tests.fake_scorer")
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


@asynccontextmanager
async def opened(folder: Path, labels: Collection[str] = ("bad",), **fields: Any) -> AsyncIterator[ModelJudge]:
    with trio.fail_after(TIMEOUT_S):
        async with open_model_judge(str(folder), labels, **({"worker": FAKE} | fields)) as judge:
            yield judge


class Answer:
    """What a judge says in the end."""

    def __init__(self, judge: ModelJudge, text: str) -> None:
        self._done = trio.Event()
        self.scores: Scores | None = None
        self.is_there = False
        self.number = judge.ask(text, self._put)

    def _put(self, scores: Scores | None) -> None:
        self.scores, self.is_there = scores, True
        self._done.set()

    async def wait(self) -> Scores | None:
        await self._done.wait()
        return self.scores


async def test_texts_are_scored(folder: Path) -> None:
    async with opened(folder) as judge:
        assert not judge.is_ready
        await judge.wait_ready()
        assert judge.is_ready
        answers = [Answer(judge, text) for text in ("a bad day", "a good day")]
        assert [await answer.wait() for answer in answers] == [{"bad": 0.9, "good": 0.1}, {"bad": 0.2, "good": 0.8}]


async def test_a_text_that_the_model_cannot_take_fails_alone(folder: Path) -> None:
    async with opened(folder) as judge:
        await judge.wait_ready()
        odd, good = Answer(judge, "odd"), Answer(judge, "good")
        assert await odd.wait() is None
        assert await good.wait() is not None


async def test_what_is_withdrawn_is_not_answered(folder: Path) -> None:
    async with opened(folder) as judge:
        await judge.wait_ready()
        first, second, third = (Answer(judge, text) for text in ("one", "two", "three"))
        judge.withdraw(second.number)
        judge.withdraw(second.number)
        await first.wait()
        await third.wait()
        assert not second.is_there


async def test_a_worker_that_dies_fails_what_was_asked_and_another_one_comes(folder: Path) -> None:
    async with opened(folder) as judge:
        await judge.wait_ready()
        dying, waiting = Answer(judge, "die"), Answer(judge, "good")
        assert [await dying.wait(), await waiting.wait()] == [None, None]
        assert not judge.is_ready
        assert await Answer(judge, "too early").wait() is None
        await judge.wait_ready()
        assert await Answer(judge, "good").wait() is not None


async def test_a_worker_that_hangs_is_killed_when_its_answer_is_given_up(folder: Path) -> None:
    async with opened(folder) as judge:
        await judge.wait_ready()
        hanging, waiting = Answer(judge, "hang"), Answer(judge, "good")
        with trio.move_on_after(0.2):
            await hanging.wait()
        assert not (hanging.is_there or waiting.is_there)
        judge.give_up(hanging.number)
        assert await waiting.wait() is None
        assert not hanging.is_there
        await judge.wait_ready()
        assert await Answer(judge, "good").wait() is not None


async def test_a_worker_that_is_slow_is_not_killed(folder: Path) -> None:
    """Somebody was answered meanwhile, so what was given up had its turn to come."""
    async with opened(folder) as judge:
        await judge.wait_ready()
        first, second, third = (Answer(judge, text) for text in ("one", "hang", "three"))
        await first.wait()
        judge.give_up(third.number)
        assert judge.is_ready
        judge.give_up(third.number)
        assert not (second.is_there or third.is_there)


async def test_a_model_without_a_label_that_is_asked_for_is_no_judge(folder: Path) -> None:
    async with opened(folder, ["bad", "ugly"]) as judge:
        with pytest.raises(BackendError, match=r"has no label 'ugly'; it has bad, good\."):
            await judge.wait_ready()
        assert not judge.is_ready
        assert await Answer(judge, "good").wait() is None


async def test_a_folder_without_weights_is_reported(folder: Path) -> None:
    async with opened(folder, worker=(sys.executable, "-m", "engine.safety.worker")) as judge:
        with pytest.raises(BackendError, match="could not be loaded"):
            await judge.wait_ready()
