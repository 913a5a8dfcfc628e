"""`longloop models --probe` on the contract server: all points are met there, and each one that is not is named."""

from dataclasses import replace
from typing import Any, Final

import pytest
import trio
from typer.testing import CliRunner

from engine.backends.remote.link import Link, LinkConfig
from engine.backends.remote.probe import Point, Probe
from engine.cli import app, main
from tests.contract_answers import Answer, Json, Piece, called, problem, said
from tests.contract_server import ContractServer, Dialect, Sent, open_contract_server

LIMITS: Final = {"x-ratelimit-limit-tokens-minute": "100", "x-ratelimit-remaining-tokens-minute": "60"}
DIALECTS: Final[list[Dialect]] = ["cerebras", "vllm", "llamacpp"]


def dutiful(sent: Sent) -> Answer:
    """What a model says that does what it is asked."""
    body: Json = sent.body
    if "prompt" in body:
        limit = body.get("max_tokens") or body["n_predict"]
        ids = [(body["prompt"][-1] + 7 * n) % 1000 for n in range(1, limit + 1)]
        return Answer(pieces=[Piece("x", (id_,)) for id_ in ids], finish="length")
    if body.get("tool_choice") == "required":
        return Answer(deltas=called("get_weather", '{"city": "Paris"}'))
    if "response_format" in body:
        return Answer(deltas=said('{"city": ', '"Paris"}'))
    return Answer(deltas=said("Hello."), cached_tokens=500)


async def look(server: ContractServer, key: str = "right") -> dict[str, Point]:
    """The points of this server, by name."""
    points: list[Point] = []
    with trio.fail_after(20):
        async with open_contract_server(server) as url:
            link = Link(LinkConfig(base_url=f"{url}/v1", key=key))
            await Probe(link, server.dialect, "test-model", points.append).run()
    return {point.name: point for point in points}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_server_that_keeps_to_the_contract_meets_every_point(dialect: Dialect) -> None:
    points = await look(ContractServer(dutiful, dialect=dialect, api_key="right", headers=LIMITS))
    assert [point for point in points.values() if not point.is_met] == []
    assert len(points) == {"cerebras": 15, "vllm": 10, "llamacpp": 10}[dialect]
    assert points["chat: a call comes"].told == "one chunk, with index and id"
    assert points["a long prompt is cached"].told == "500 tokens the second time"


def spoilt(**spoilt_fields: Any) -> Any:
    """The same, with something changed in every answer."""
    return lambda sent: replace(dutiful(sent), **spoilt_fields)


EIGHT: Final = [Piece("", (n,)) for n in range(8)]
MODEL_ERROR: Final = Answer(status=500, error=problem("broken", "server_error"))


@pytest.mark.parametrize(
    ("server", "name", "told"),
    [
        (ContractServer(dutiful, models=("other",)), "models are listed", "'test-model' is not among other"),
        (ContractServer(spoilt(times=None)), "chat: an answer is streamed", "no time_info"),
        (ContractServer(spoilt(has_end=False)), "chat: an answer is streamed", "it ended before its end"),
        (ContractServer(spoilt(finish=None)), "chat: an answer is streamed", "no finish_reason"),
        (ContractServer(spoilt(prompt_tokens=0, deltas=said("x"))), "chat: a call comes", "no tool_calls"),
        (ContractServer(spoilt(deltas=called("f", "["))), "chat: a call comes", "cannot be read"),
        (ContractServer(lambda sent: MODEL_ERROR), "chat: its output is taken", "broken"),
        (ContractServer(spoilt(deltas=said('{"town": 1}'))), "chat: an answer is held to a schema", '{"town": 1}'),
        (ContractServer(spoilt(cached_tokens=0)), "a long prompt is cached", "cached_tokens is 0"),
        (ContractServer(dutiful, encodings=["msgpack"]), "bodies: gzip", "simpler form"),
        (ContractServer(dutiful, encodings=["gzip"]), "bodies: msgpack and gzip", "simpler form"),
        (ContractServer(spoilt(pieces=[])), "ids: they are taken and given", "return_raw_tokens"),
        (ContractServer(spoilt(pieces=EIGHT)), "ids: an answer can be gone on with", "greedy"),
        (ContractServer(dutiful), "a wrong key is a 401", "it answered"),
        (ContractServer(spoilt(has_usage=False)), "chat: an answer is streamed", "no usage"),
        (ContractServer(spoilt(error=problem("broken", "oops"))), "chat: an answer is streamed", "oops"),
        (ContractServer(dutiful), "rate limits are told", "no x-ratelimit headers"),
    ],
)  # fmt: skip
async def test_a_point_that_is_not_met_is_named(server: ContractServer, name: str, told: str) -> None:
    point = (await look(server))[name]
    assert not point.is_met and told in point.told


async def test_the_command_tells_all_and_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_API_KEY", "right")
    server = ContractServer(dutiful, api_key="right")
    async with open_contract_server(server) as url:
        command = ["models", "--probe", "cerebras", "--base-url", url, "--model", "test-model"]
        done = await trio.to_thread.run_sync(CliRunner().invoke, app, command)
    lines = done.output.splitlines()
    assert lines[0] == f"Cerebras at {url}/v1, model test-model"
    assert "yes  chat: a call comes: one chunk, with index and id" in lines
    assert " NO  rate limits are told: no x-ratelimit headers" in lines
    assert lines[-1] == "14 of 15 points are as the project takes them to be." and done.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--probe", "local"], "--probe takes one of cerebras"),
        (["--probe", "vllm", "--base-url", "http://127.0.0.1:1"], "vLLM cannot be reached"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["longloop", "models", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert told in capsys.readouterr().err
