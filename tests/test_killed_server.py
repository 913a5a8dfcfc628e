"""A server process that is killed at random points of a run, started anew on its data folder, and finishes the run.

`LONGLOOP_SOAK_KILLS=200 pytest tests/test_killed_server.py` kills as often.
"""

import os
import random
from pathlib import Path
from typing import Final

import trio

from engine.client import Result, RunFailed, open_run
from tests.lives import Lives, Seen, replay
from tests.tiny import save_format

KILLS: Final = int(os.environ.get("LONGLOOP_SOAK_KILLS", "20"))
SCENARIO = """
model: test
pace: {tokens_per_second: 400}
steps:
  - text: {words: 30}
    calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - [{calls: [{name: look, arguments: {n: 3}}]}, {text: {words: 20}}]
  - text: {words: 30}
    calls: [{name: look, arguments: {n: 4}}]
  - text: "Done with {last_output}."
"""


async def look(n: int) -> str:
    """Look at something."""
    return f"thing {n}"


async def run(url: str, seen: Seen) -> Result:
    """One run, over as many servers as it takes."""
    async with open_run(
        url, input="go", tools=[look], include=["response.tokens"], on_event=seen.add, max_retries=15
    ) as running:
        return await running.result()


def expect_failed_rightly(error: RunFailed, seen: Seen, waits: bool) -> None:
    """A run may be lost that had no step on disk."""
    assert error.code in ("server_error", "response_not_found")
    assert seen.last_pause < 0 or not waits


async def test_killed_runs_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:  # P82, P83, P85
    scenario, form = tmp_path / "scenario.yaml", tmp_path / "format"
    scenario.write_text(SCENARIO)
    rng, lives = random.Random(KILLS), Lives(tmp_path, f"script:{scenario}", tokenizer=save_format(form))
    num_finished = num_set_back = 0
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60 + 10 * KILLS):
            await nursery.start(lives.go_on)
            whole = Seen()
            reference = await run(lives.url, whole)
            for _ in range(KILLS):
                await lives.is_up.wait()
                waits, seen = lives.waits, Seen(rng.randrange(len(whole.events) - 1), lives.kill)
                try:
                    result = await run(lives.url, seen)
                except RunFailed as error:
                    expect_failed_rightly(error, seen, waits)
                    continue
                num_finished += 1
                num_set_back += seen.num_set_back
                assert not (waits and seen.has_lost_a_pause)
                assert result.text == reference.text == "Done with thing 4."
                assert [item.type for item in result.output] == [item.type for item in reference.output]
                assert len({item.id for item in result.output}) == len(result.output)
                assert seen.token_ids() == whole.token_ids()
                if waits or seen.num_resumed:  # else its end may have come before the kill, and not reached the disk
                    await lives.is_up.wait()
                    assert list(seen.events.values()) == await replay(lives.url, result.id)
        nursery.cancel_scope.cancel()
    assert num_finished >= KILLS / 2
    assert num_set_back >= KILLS / 4
