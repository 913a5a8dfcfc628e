"""A run of a local model whose server is killed between two turns says what it would have said, token for token."""

from pathlib import Path

import pytest
import trio

from engine.client import open_run
from tests.lives import Lives, Seen
from tests.tiny import save_format
from tests.tiny_model import save_model

pytestmark = pytest.mark.model

# A model of random weights would not stop by itself.
SHORT = {"format": {"type": "json_schema", "name": "short", "schema": {"type": "string", "maxLength": 20}}}


async def talk(lives: Lives, seen: Seen, *, is_killed: bool) -> list[str]:
    """Three turns, the server killed before the last; what the model said."""
    fields = {"temperature": 0, "text": SHORT, "include": ["response.tokens"], "max_retries": 15}
    async with open_run(lives.url, input="Hello", keep_open=True, on_event=seen.add, **fields) as run:
        said = [(await run.result()).text]
        await run.send("And then?")
        said.append((await run.result()).text)
        if is_killed:
            lives.kill()
        await run.send("And in the end?")
        return [*said, (await run.result()).text]


async def test_a_killed_local_server_goes_on_token_for_token(tmp_path: Path) -> None:  # P82
    folder = save_model(save_format(tmp_path / "model"))
    lives = Lives(tmp_path, "local", model=folder, dtype="float32", store_wait=True)
    whole, seen = Seen(), Seen()
    async with trio.open_nursery() as nursery:
        with trio.fail_after(120):
            await nursery.start(lives.go_on)
            said = await talk(lives, whole, is_killed=False)
            assert await talk(lives, seen, is_killed=True) == said
        nursery.cancel_scope.cancel()
    assert lives.num == 2
    assert seen.token_ids() == whole.token_ids()
    assert sum(is_sampled for is_sampled, _ in seen.token_ids()) > 30
