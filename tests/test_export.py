"""`longloop export`: the store, a running server, and a trainer's view of what comes out."""

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from transformers import AutoModelForCausalLM

from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.backends.prompt_format import PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_prompt import PromptContext
from engine.client import open_run
from engine.commands.export import export_command
from engine.commands.serve import UsageError
from engine.database import FILE_NAME
from engine.settings import Settings
from engine.sqlite_store import open_store
from tests.peers.server import open_server
from tests.served import TWO_CALLS, open_served, pending
from tests.tiny import save_format
from tests.tiny_model import save_model

Line = dict[str, Any]
SHORT = {"format": {"type": "json_schema", "name": "short", "schema": {"type": "string", "maxLength": 20}}}
RATED = {"include": ["response.tokens", "message.output_text.logprobs"]}


def exported(capsys: pytest.CaptureFixture[str], folder: Path, *ids: str, **options: Any) -> list[Line]:
    capsys.readouterr()
    export_command(folder, ids, **options)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# --- from the store


@pytest.fixture
async def stored(tmp_path):
    """A store with a run of two steps, one that went on from it, one that began anew, and one that is paused."""
    form = PromptFormat.load(save_format(tmp_path / "format"))
    backend = ScriptBackend([parse_scenario(TWO_CALLS)], partial(PromptContext, form))
    ids, logs = {}, {}
    settings = Settings(data_dir=tmp_path / "data")
    async with (
        open_store(settings) as store,
        open_served(backend=backend, store=store, data_dir=settings.data_dir) as server,
        server.connect() as client,
    ):

        async def run(name: str, **fields: Any) -> None:
            await client.create(**fields)
            frames = await client.step()
            ids[name] = frames[0]["response"]["id"]
            if frames[-1]["type"] == "response.done" and name != "paused":
                await client.answer(*((key, "out") for key in pending(frames)))
                await client.step()

        await run("first")
        await run("next", input="more", previous_response_id=ids["first"])
        await run("apart", input="anew", instructions="Others.", previous_response_id=ids["first"])
        await run("paused", resumable=True)
        await server.http().get("/v1/responses/none")
        for name, id_ in ids.items():
            logs[name] = (await server.http().get(f"/v1/responses/{id_}/tokens")).json["data"]
    return settings.data_dir, ids, logs


async def test_every_response_that_no_other_one_holds_is_exported(stored, capsys):
    folder, ids, logs = stored
    lines = exported(capsys, folder)
    # `next` has the context of `first`; `apart` has other instructions, so it was rendered anew.
    assert {line["response_id"] for line in lines} == {ids["next"], ids["apart"], ids["paused"]}
    names = {id_: name for name, id_ in ids.items()}
    for line in lines:
        spans = logs[names[line["response_id"]]]
        assert line["ids"] == [id_ for span in spans for id_ in span["ids"]]
        assert line["sampled"] == [int(span["sampled"]) for span in spans for _ in span["ids"]]
        assert (line["model"], line["segment"]) == ("script:test", 0)
    by_name = {names[line["response_id"]]: line for line in lines}
    assert by_name["paused"]["status"] == "in_progress" and by_name["next"]["status"] == "completed"
    assert len(by_name["next"]["steps"]) == 4 and len(by_name["paused"]["steps"]) == 1


async def test_named_responses_are_exported_as_they_ended(stored, capsys):
    folder, ids, logs = stored
    (line,) = exported(capsys, folder, ids["first"])
    assert line["ids"] == [id_ for span in logs["first"] for id_ in span["ids"]]
    assert len(line["steps"]) == 2
    with pytest.raises(UsageError, match="Response with id 'resp_no' not found"):
        exported(capsys, folder, "resp_no")


def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, capsys):
    with pytest.raises(UsageError, match=r"There is no store in .* A running server is asked with --url"):
        exported(capsys, tmp_path)
    with pytest.raises(UsageError, match="With --url, say which responses"):
        exported(capsys, tmp_path, url="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="cannot be asked"):
        exported(capsys, tmp_path, "resp_1", url="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="not a server's URL"):
        exported(capsys, tmp_path, "resp_1", url="ftp://127.0.0.1")


async def test_a_named_response_without_ids_is_told_and_not_passed_over(tmp_path, capsys):
    """Without a tokenizer a script has no ids."""
    settings = Settings(data_dir=tmp_path)
    async with (
        open_store(settings) as store,
        open_served(TWO_CALLS, store=store, data_dir=tmp_path) as server,
        server.connect() as client,
    ):
        await client.create()
        response_id = (await client.step())[0]["response"]["id"]
    with pytest.raises(UsageError, match="No token ids are recorded"):
        exported(capsys, tmp_path, response_id)
    assert exported(capsys, tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "UPDATE steps SET step = x'00' WHERE response_id = :id",
            r"What is stored of resp_\w+ cannot be read; the rest",
        ),
        ("UPDATE steps SET step = '[1, 2]' WHERE response_id = :id", "cannot be read"),
        ("UPDATE responses SET start = '{}'", "and 3 more cannot be read"),
        ("UPDATE responses SET id = CAST(x'FF' || id AS TEXT) WHERE id = :id", "The store is damaged"),
    ],
)
async def test_what_is_damaged_is_told_and_the_rest_is_written(stored, capsys, damage, message):
    folder, ids, _ = stored
    with closing(sqlite3.connect(folder / FILE_NAME)) as database, database:
        database.execute(damage, {"id": ids["apart"]} if ":id" in damage else {})
    capsys.readouterr()
    with pytest.raises(UsageError, match=message):
        export_command(folder, [])
    lines = [json.loads(line)["response_id"] for line in capsys.readouterr().out.splitlines()]
    if ":id" in damage and "damaged" not in message:
        assert set(lines) == {ids["next"], ids["paused"]}


@pytest.mark.parametrize(
    ("fault", "raised"), [(OSError(28, "No space left"), UsageError), (BrokenPipeError(), BrokenPipeError)]
)
async def test_only_a_reader_that_has_enough_is_no_fault(stored, monkeypatch, fault, raised):
    def fail(text: str) -> None:
        raise fault

    monkeypatch.setattr("engine.commands.export.print", fail, raising=False)
    with pytest.raises(raised, match="cannot be written" if raised is UsageError else None):
        export_command(stored[0], ())


# --- scored again by the model


def rescored(network: Any, line: Line) -> list[float | None]:
    """The log-probability of each sampled id, from one pass of the model over the whole context."""
    with torch.inference_mode():
        logits = network(torch.tensor([line["ids"]])).logits[0].float()
    scores = torch.log_softmax(logits, -1).numpy()
    masked = zip(line["ids"], line["sampled"], strict=True)
    return [float(scores[at - 1, id_]) if sampled else None for at, (id_, sampled) in enumerate(masked)]


async def two_turns(url: str, asked: dict[str, Any]) -> str:
    """A run whose two answers are held to a shape, so that also a model of random weights comes to an end."""
    async with open_run(url, input="Hello", keep_open=True, text=SHORT, **asked) as run:
        await run.result()
        await run.send("And then?")
        return (await run.result()).id


async def check_scores(
    capsys, tmp_path: Path, model: Path | str, folder: Path, asked: dict[str, Any] = RATED, **settings: Any
) -> None:
    """Run, export from the server and, once it is gone, from the store, and score the ids with the stock model."""
    data = tmp_path / "data"
    settings |= {"model": model, "dtype": "float32", "threads": 1, "data_dir": data}
    async with open_server("local", tmp_path / "log", **settings) as server:
        with trio.fail_after(240):
            response_id = await two_turns(server.url, asked)
            (line,) = await trio.to_thread.run_sync(partial(exported, capsys, data, response_id, url=server.url))
            with pytest.raises(UsageError, match="The server refused: Response with id 'resp_no' not found"):
                await trio.to_thread.run_sync(partial(exported, capsys, data, "resp_no", url=server.url))
    assert exported(capsys, data) == [line | {"status": exported(capsys, data)[0]["status"]}]
    assert len(line["steps"]) == 2
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = rescored(network, line)
    assert [one is None for one in line["logprobs"]] == [one is None for one in expected]
    pairs = [pair for pair in zip(line["logprobs"], expected, strict=True) if pair[0] is not None]
    assert len(pairs) > 10
    ours, theirs = zip(*pairs, strict=True)
    # A batch of one prompt at once, and of chunks and single ids: float32 sums in another order.
    assert ours == pytest.approx(theirs, abs=2e-3)


async def test_a_trajectory_of_the_tiny_model_scores_the_same(tmp_path, capsys):
    folder = save_model(save_format(tmp_path / "model"))
    await check_scores(capsys, tmp_path, folder, folder)


async def test_a_server_can_record_what_no_client_asks_for(tmp_path, capsys):
    folder = save_model(save_format(tmp_path / "model"))
    await check_scores(capsys, tmp_path, folder, folder, asked={}, record_logprobs=True)


@pytest.mark.model
async def test_a_trajectory_of_the_default_model_scores_the_same(tmp_path, capsys):
    await check_scores(capsys, tmp_path, DEFAULT_MODEL, resolve(DEFAULT_MODEL, lambda *_: None))
