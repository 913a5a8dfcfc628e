"""remote/opening.py, services.py, trial.py: a service is tried at the start; what is wrong is one sentence."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from engine.backends.base import Backend, RunSpec, StepSpec
from engine.backends.remote.chat import ChatBackend
from engine.backends.remote.encoding import Encoding
from engine.backends.remote.opening import link_of
from engine.backends.remote.raw import RawBackend
from engine.backends.remote.services import SERVICES, NotUsable, base_url_of, read_key
from engine.commands.backend import choose_backend
from engine.errors import BackendError
from engine.items import Message
from engine.settings import load
from tests.contract_answers import Answer, Piece
from tests.contract_server import ContractServer, open_contract_server
from tests.remote_model import hashed, speaking
from tests.remote_peer import Asked, Reply, open_peer, refusal, sse
from tests.tiny import CONTEXT_WINDOW, HERMES, save_format

KEY = "csk-secret"
DIALECTS = ["cerebras", "vllm", "llamacpp"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_format(tmp_path_factory.mktemp("format"), HERMES))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in SERVICES.values():
        monkeypatch.delenv(service.key_variable, raising=False)


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[Backend]:
    async with choose_backend(load(**settings), lambda what, fraction: None) as backend:
        yield backend


async def complaint(**settings: Any) -> str:
    """Why it cannot be opened."""
    with pytest.raises(BackendError) as caught:
        async with opened(**settings):
            pass
    assert "\n" not in caught.value.message
    return caught.value.message


async def sample(backend: Backend, model: str) -> list[int]:
    sequence = backend.open_sequence(RunSpec(response_id="r", model=model))
    sequence.commit(await sequence.prepare([Message(role="user", content="go")]))
    sequence.start_step(StepSpec(max_tokens=3))
    while not await sequence.next_deltas():
        pass
    return list(sequence.tokens.context())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_with_a_tokenizer_it_is_the_raw_route(folder: str, dialect: Any) -> None:
    server = ContractServer(speaking(hashed), dialect=dialect, context_window=1000)
    async with (
        open_contract_server(server) as url,
        opened(backend=dialect, base_url=url, model="test-model", tokenizer=folder) as backend,
    ):
        assert isinstance(backend, RawBackend)
        assert [model.id for model in backend.models()] == ["test-model"]
        await sample(backend, "test-model")
        form = backend._form
        assert form.context_window == (CONTEXT_WINDOW if dialect == "cerebras" else 1000)
    assert "msgpack" in server.asked[-1].headers["content-type"] or dialect != "cerebras"


async def test_the_settings_say_how_long_the_context_is_before_anybody_else(folder: str) -> None:
    async with (
        open_contract_server(ContractServer(speaking(hashed), dialect="vllm")) as url,
        opened(backend="vllm", base_url=url, model="test-model", tokenizer=folder, context_window=500) as backend,
    ):
        assert isinstance(backend, RawBackend)
        assert backend._form.context_window == 500


def test_the_way_to_a_service_is_as_the_settings_say() -> None:
    named = {
        "upstream_connect_s": 1.5,
        "upstream_first_token_s": 2.5,
        "upstream_between_tokens_s": 3.5,
        "upstream_total_s": 4.5,
        "upstream_idle_s": 5.5,
        "upstream_retries": 6,
        "upstream_max_wait_s": 7.5,
        "max_upstream_event_bytes": 8,
        "upstream_msgpack": False,
    }
    link = link_of(load(backend="cerebras", base_url="http://a/v1", **named), SERVICES["cerebras"], "http://a/v1")
    told = link.config
    assert (told.connect_s, told.first_token_s, told.between_tokens_s, told.total_s) == (1.5, 2.5, 3.5, 4.5)
    assert (told.max_idle_s, told.retries, told.max_wait_s, told.max_event_bytes) == (5.5, 6, 7.5, 8)
    assert told.encoding == Encoding(gzip=True)
    assert link.new_client().timeout.connect == 1.5


@pytest.mark.parametrize("dialect", [*DIALECTS, "openai"])
async def test_without_one_it_is_the_chat_route(dialect: Any) -> None:
    server = ContractServer([], dialect="vllm" if dialect == "openai" else dialect, models=("a", "test-model"))
    async with (
        open_contract_server(server) as url,
        opened(backend=dialect, base_url=f"{url}/v1/", model="test-model") as backend,
    ):
        assert isinstance(backend, ChatBackend)
        assert backend.models()[0].id == "test-model"


async def test_the_only_model_of_a_service_needs_no_name() -> None:
    server = ContractServer([], models=("one",))
    async with open_contract_server(server) as url, opened(backend="cerebras", base_url=url) as backend:
        assert backend.models()[0].id == "one"


async def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    async with open_contract_server(ContractServer([], api_key=KEY)) as url:
        settings: dict[str, Any] = {"backend": "cerebras", "base_url": url, "model": "test-model"}
        said = await complaint(**settings)
        assert "refuses the key (401)" in said and "CEREBRAS_API_KEY" in said
        async with opened(**settings, key_file=str(file)):
            pass
        monkeypatch.setenv("CEREBRAS_API_KEY", KEY)
        async with opened(**settings):
            pass
        file.write_text("wrong")
        assert "refuses the key" in await complaint(**settings, key_file=str(file))
        file.write_text(f"{KEY}\n{KEY}")
        assert KEY not in (said := await complaint(**settings, key_file=str(file))) and "characters" in said


def test_what_is_wrong_with_a_key_is_said_without_it(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    for file, word in ((empty, "empty"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(NotUsable, match=word):
            read_key(SERVICES["vllm"], "", str(file), {})
    with pytest.raises(NotUsable, match="CEREBRAS_API_KEY"):
        read_key(SERVICES["cerebras"], "", "", {})
    assert read_key(SERVICES["cerebras"], "http://a/v1", "", {}) is None
    assert read_key(SERVICES["vllm"], "", "", {"VLLM_API_KEY": "x"}) == "x"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("", "https://api.cerebras.ai/v1"),
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/proxy/v2/", "https://h/proxy/v2"),
    ],
)
def test_a_base_url_that_names_no_path_is_completed(given: str, url: str) -> None:
    assert base_url_of(SERVICES["cerebras"], given) == url


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://h/v1", "http://", "http://h:99999", "http://[::1/v1", "http://:80", "http://h/\x01"],
)
async def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    assert url in await complaint(backend="vllm", base_url=url)


@pytest.mark.parametrize("url", ["http://me:secret@h/v1", "http://h/v1?key=secret", "http://h/v1#secret"])
async def test_a_base_url_with_what_may_be_a_secret_is_refused_without_it(url: str) -> None:
    said = await complaint(backend="vllm", base_url=url)
    assert "base_url" in said and "secret" not in said


# --- what is missing


async def test_an_unknown_model_is_named_beside_those_there_are() -> None:
    async with open_contract_server(ContractServer([], models=("a", "b"))) as url:
        said = await complaint(backend="cerebras", base_url=url, model="c")
    assert "no model 'c'; it has: a, b." in said


async def test_a_service_that_is_not_there_is_named_with_its_place() -> None:
    async with open_peer() as peer:
        pass
    assert f"vLLM cannot be reached at {peer.url}" in await complaint(backend="vllm", base_url=peer.url)


async def test_something_else_that_listens_there_is_no_service() -> None:
    async with open_peer(lambda asked: Reply([b"<html>"])) as peer:
        assert "no list of models" in await complaint(backend="vllm", base_url=peer.url)


async def test_what_a_service_answers_to_warming_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.target == "/v1/models":
            return Reply([b'{"data": [{"id": "m"}]}'])
        return Reply([b"no gzip"], headers={"content-encoding": "gzip"})

    async with open_peer(answer) as peer, opened(backend="cerebras", base_url=peer.url, model="m"):
        while len(peer.asked) < 2:
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.01)


def service(completion: Reply, tokenize: Reply) -> Any:
    """A service that has one model, and answers so."""

    def answer(asked: Asked) -> Reply:
        if asked.target == "/v1/models":
            return Reply([json.dumps({"data": [{"id": "m"}]}).encode()])
        return tokenize if asked.target == "/tokenize" else completion

    return answer


NO_IDS = Reply(sse({"choices": [{"text": "a", "finish_reason": "length"}]}))
IDS = Reply(sse({"choices": [{"token_ids": [5], "finish_reason": "length"}]}))
OTHER_IDS = Reply([b'{"tokens": [1, 2, 3]}'], headers={"content-type": "application/json"})


async def test_a_service_without_token_ids_cannot_have_the_raw_route(folder: str) -> None:
    async with open_peer(service(NO_IDS, refusal(404))) as peer:
        said = await complaint(backend="vllm", base_url=peer.url, tokenizer=folder)
    assert "no token ids (return_token_ids)" in said and "chat route" in said


async def test_a_tokenizer_of_another_model_is_found_out(folder: str) -> None:
    async with open_peer(service(IDS, OTHER_IDS)) as peer:
        said = await complaint(backend="vllm", base_url=peer.url, tokenizer=folder)
    assert "encode the same text differently" in said


async def test_a_service_that_refuses_the_trial_is_not_used(folder: str) -> None:
    async with open_peer(service(refusal(422, "prompt must be text"), refusal(404))) as peer:
        said = await complaint(backend="vllm", base_url=peer.url, tokenizer=folder)
    assert "does not do what it is asked (422: prompt must be text)" in said


async def test_a_service_without_a_list_of_models_is_taken_at_its_word(folder: str) -> None:
    def answer(asked: Asked) -> Reply:
        return IDS if asked.target == "/v1/completions" else refusal(404)

    async with open_peer(answer) as peer, opened(backend="vllm", base_url=peer.url, tokenizer=folder, model="x") as b:
        assert b.models()[0].id == "x"


@pytest.mark.parametrize(("status", "said"), [(404, "the address or the model is wrong"), (401, "refuses the key")])
async def test_who_has_neither_list_nor_chat_is_no_service(status: int, said: str) -> None:
    def answer(asked: Asked) -> Reply:
        return refusal(status if asked.target == "/v1/chat/completions" else 404)

    async with open_peer(answer) as peer:
        assert said in await complaint(backend="openai", base_url=peer.url, model="x")


async def test_without_a_list_a_chat_that_can_refuse_is_enough() -> None:
    def answer(asked: Asked) -> Reply:
        return refusal(400 if asked.target == "/v1/chat/completions" else 404)

    async with open_peer(answer) as peer, opened(backend="openai", base_url=peer.url, model="x") as backend:
        assert backend.models()[0].id == "x"


# --- several


async def test_services_and_scripts_can_be_models_of_one_server(folder: str, tmp_path: Path) -> None:
    answers = ContractServer(lambda _: Answer(pieces=[Piece("", (50,))]), dialect="vllm", models=("m",))
    async with open_contract_server(answers) as url:
        models = {
            "far": {"backend": "vllm", "base_url": url, "model": "m", "tokenizer": folder},
            "chat": {"backend": "vllm", "base_url": url, "model": "m"},
            "near": {"backend": "script:demo"},
        }
        async with opened(models=models) as backend:
            assert [model.id for model in backend.models()] == ["far", "chat", "script:near"]
            await sample(backend, "far")
    assert answers.asked[-1].body["model"] == "m"
