"""`bench local` and `bench peers` with a tiny model and few of everything; what they say of what they measured."""

import json

import pytest

from engine.bench import engines, replay
from engine.bench.bare_model import Bare
from engine.bench.engines import Engine, NotMeasured, free_port, gguf_of, wait_listening
from engine.bench.local import DECODED, LocalFigure, budgets
from engine.bench.processes import LineReader, open_process
from engine.bench.replay import Replay, Turn, bench_peers, middle_ratio, text_of
from engine.commands import bench as bench_command
from engine.commands.bench import local_command
from tests.contract_answers import Answer
from tests.contract_server import ContractServer, open_contract_server
from tests.fake_model import FakeModel
from tests.tiny import SMOLLM, save_format
from tests.tiny_model import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    save_format(folder, SMOLLM)
    return save_model(folder)


def test_local_measures_each_kind_of_work_served_and_bare(folder, capsys):
    local_command(model=str(folder), longest=512, largest=1, rounds=1, as_json=True)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    decode, prompt, resume = (figure["work"] for figure in result["figures"])
    assert decode == "decode, 1 at a time"
    assert prompt.startswith("prompt of ")
    assert resume.endswith(prompt.removeprefix("prompt of "))
    assert all(figure["served_s"] > 0 < figure["bare_s"] for figure in result["figures"])
    assert len(result["budgets"]) == 3


def test_local_holds_the_server_to_the_bare_model_and_kept_kv_to_its_gain():
    figures = [
        LocalFigure("decode, 1 at a time", DECODED, 2.0, 1.9),
        LocalFigure("decode, 4 at a time", 4 * DECODED, 2.0, 1.0),
        LocalFigure("prompt of 2,000", 2_000, 4.0, 3.9),
        LocalFigure("50 behind 2,000", 50, 0.2, 0.15),
        LocalFigure("prompt of 100", 100, 4.0, 3.9),
        LocalFigure("50 behind 100", 50, 0.2, 0.2),
    ]
    assert [figure.row()[1:] for figure in budgets(figures)] == [
        ["0.95", "≥ 0.95", "met"],
        ["0.50", "≥ 0.92", "missed"],
        ["1.33", "≤ 1.20", "missed"],
        ["20.00", "≥ 18.00", "met"],
        ["1.00", "≤ 1.20", "met"],
    ]
    assert figures[0].per_s == (DECODED / 2.0, DECODED / 1.9)


def test_the_bare_model_does_the_work_that_it_is_asked_for():
    model = FakeModel()
    model.vocab_size = 300
    bare = Bare(model)
    assert bare.prefill(600) > 0 < bare.resume(50)
    assert model.steps == [[256], [256], [88], [50]]
    bare.decode(batch=2, length=10, steps=3)
    assert model.steps[4:] == [[10], [10], [1, 1], [1, 1], [1, 1]]


async def test_peers_measures_who_is_there_and_says_who_is_not(folder, monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    server = ContractServer(lambda sent: Answer(deltas=[{"content": "A few"}, {"content": " words"}]), dialect="llama")
    told = []
    async with open_contract_server(server) as url:
        other = Engine("contract", f"{url}/v1", "test-model")
        result = await bench_peers(
            str(folder), initial=40, grow=20, turns=3, others=[other], report=lambda *turn: told.append(turn)
        )
    assert [number for number, _ in told] == [0, 1, 2]
    ours, theirs, *absent = result["replays"]
    assert (ours["name"], len(ours["turns"]), theirs["name"], len(theirs["turns"])) == ("longloop", 3, "contract", 3)
    assert [replay["note"].partition(":")[0] for replay in absent] == ["not measured"] * 2
    assert [len(sent.body["messages"]) for sent in server.asked] == [1, 1, 3, 5]
    assert [figure.verdict.partition(":")[0] for figure in result["budgets"]][1:] == ["not measured"] * 2


def test_the_ratio_is_that_of_the_turns_after_the_first():
    ours = Replay("a", [Turn(1.0, 2.0), Turn(0.1, 1.0), Turn(0.1, 1.0)])
    theirs = Replay("b", [Turn(9.0, 9.5), Turn(0.2, 1.0), Turn(0.4, 1.5)])
    assert middle_ratio(ours, theirs) == pytest.approx(3.0)
    assert ours.total_s == 4.0
    assert replay.budgets([ours, theirs])[0].value == pytest.approx(4.0)


def test_texts_grow_with_what_is_asked_for_and_differ():
    assert len(text_of(277, 1).split()) == 199
    assert text_of(50, 1) != text_of(50, 2)


async def test_a_peer_that_does_not_start_is_not_measured():
    async with open_process("-c", "raise SystemExit(3)") as process:
        with pytest.raises(NotMeasured, match="did not start"):
            await wait_listening(process, free_port())


async def test_llama_cpp_needs_a_file_of_the_model(tmp_path):
    with pytest.raises(NotMeasured, match="gguf"), gguf_of(str(tmp_path)):
        pass
    with gguf_of("x.gguf") as file:
        assert str(file) == "x.gguf"


async def test_a_process_that_ends_too_early_is_an_error():
    async with open_process("-c", "print('one'); print('two')") as process:
        lines = LineReader(process.stdout)
        assert [await lines.next_line(), await lines.next_line()] == ["one", "two"]
        with pytest.raises(RuntimeError, match="ended"):
            await lines.next_line()


@pytest.mark.parametrize(
    ("written", "engine"),
    [
        ("vllm=http://h:1/v1/", Engine("vllm", "http://h:1/v1", "default")),
        ("vllm=http://h:1/v1=smol", Engine("vllm", "http://h:1/v1", "smol")),
    ],
)
def test_a_running_server_is_named_with_its_url(written, engine):
    assert bench_command._engine(written) == engine


def test_a_row_of_the_table_says_what_was_measured_or_why_not():
    ours = Replay("longloop", [Turn(0.2, 1.0), Turn(0.1, 1.0)])
    assert bench_command._replay_row(ours, ours) == ["longloop", "200 / 150 / 100", "1.00", "2.0"]
    assert bench_command._replay_row(ours, Replay("b", [], "not measured: x")) == ["b", "not measured: x", "", ""]
