"""Benches: what they report and how they connect. Their figures are no test; here each runs with tiny numbers."""

import json

import pytest
import trio
from trio_websocket import ConnectionClosed
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request

from engine.bench.budgets import Figure
from engine.bench.memory import MemoryFigures
from engine.bench.memory import budgets as memory_budgets
from engine.bench.phases import PHASES, PhaseFigures, bench_phases
from engine.bench.phases import budgets as phase_budgets
from engine.bench.processes import open_peer
from engine.bench.remote import TokenFigures, bench_remote
from engine.bench.remote import TurnFigures as RemoteFigures
from engine.bench.remote import budgets as remote_budgets
from engine.bench.sockets import open_socket
from engine.bench.turn import TurnFigures, bench_turn, budgets, histories_up_to
from engine.commands.bench import memory_command, stream_command
from tests.tiny import save_format


@pytest.mark.parametrize(
    ("figure", "row"),
    [
        (Figure("a", 2.0, "≤", 2), ["a", "2.00", "≤ 2.00", "met"]),
        (Figure("a", 2.01, "≤", 2), ["a", "2.01", "≤ 2.00", "missed"]),
        (Figure("a", 0.5, "≥", 0.5), ["a", "0.50", "≥ 0.50", "met"]),
        (Figure("a", 0.49, "≥", 0.5), ["a", "0.49", "≥ 0.50", "missed"]),
        (Figure("a", 1.1, ">", 1.1), ["a", "1.10", "> 1.10", "missed"]),
        (Figure("a", 58_400.2, "≤", 60_000, "bytes"), ["a", "58,400 bytes", "≤ 60,000 bytes", "met"]),
        (Figure("a", None, "≤", 1.1, note="needs two"), ["a", "–", "≤ 1.10", "needs two"]),
    ],
)
def test_figure_is_shown_with_its_budget_and_whether_it_keeps_to_it(figure: Figure, row: list[str]) -> None:
    assert figure.row() == row
    assert figure.as_json()["is_met"] is {"met": True, "missed": False}.get(row[-1])


def measured(tokens: int, turn_ms: float, *, cached: bool = True) -> TurnFigures:
    return TurnFigures(tokens, tokens // 100, cached, 3, turn_ms, turn_ms * 2, 1, 2, 1, 80)


def test_turn_names_the_histories_that_it_compared() -> None:
    figures = [measured(1_234, 2), measured(5_678, 2.1)]
    control = [measured(1_234, 3, cached=False), measured(5_678, 12, cached=False)]
    rows = [figure.row() for figure in budgets(figures + control)]
    assert rows == [
        ["append to first event, over a bare echo (p50)", "2.00", "≤ 2.00", "met"],
        ["append to first event, over a bare echo (p99)", "2.00", "≤ 3.00", "met"],
        ["the same, 5,678 over 1,234 tokens of history", "1.05", "≤ 1.10", "met"],
        ["5,678 over 1,234 tokens of history, without the token cache", "4.00", "> 1.10", "met"],
    ]


def test_turn_with_one_history_says_that_it_compares_nothing() -> None:
    rows = [figure.row() for figure in budgets([measured(1_000, 2), measured(1_000, 3, cached=False)])]
    assert [row[-1] for row in rows] == ["met", "met", "needs two histories", "needs two histories"]


@pytest.mark.parametrize(
    ("longest", "histories"),
    [(1_000, [1_000]), (1_001, [1_000, 1_001]), (100_000, [1_000, 10_000, 100_000]), (20_000, [1_000, 10_000, 20_000])],
)
def test_longest_history_is_always_measured(longest: int, histories: list[int]) -> None:
    assert histories_up_to(longest) == histories


def test_a_phase_is_to_be_flat_and_to_grow_with_its_switch_on() -> None:
    figures = [
        PhaseFigures("classify", False, 1_000, 0.1, 0.11),
        PhaseFigures("ledger", False, 1_000, 0.02, 0.02),
        PhaseFigures("hosted tools", False, 1_000, 0.0, 0.0),
        PhaseFigures("classify", True, 200, 0.1, 0.4),
        PhaseFigures("validate", True, 200, 0.1, 0.1),
        PhaseFigures("ledger", True, 200, 1.0, 1.0),
    ]
    assert [figure.row() for figure in phase_budgets(figures)] == [
        ["classify: last over first of 1,000 turns", "1.10", "≤ 1.20", "met"],
        ["ledger: last over first of 1,000 turns", "1.00", "≤ 1.20", "met"],
        ["hosted tools: last over first of 1,000 turns", "–", "≤ 1.20", "nothing happens in it"],
        ["classify, all again each turn: last over first of 200 turns", "4.00", "> 1.20", "met"],
        ["ledger, waiting for the disk over not waiting", "50.00", "> 1.20", "met"],
    ]


def test_budget_for_memory_is_for_runs_of_one_size() -> None:
    assert [figure.verdict for figure in memory_budgets(MemoryFigures(9, 4_000, 70_000, 10_000, 60_001, 1))] == [
        "missed"
    ]
    assert [figure.verdict for figure in memory_budgets(MemoryFigures(9, 500, 70_000, 10_000, 60_001, 1))] == [
        "set for 4,000 tokens"
    ]


# --- whole runs with tiny numbers --------------------------------------------------------------------------------


async def test_turn_measures_each_history_and_the_control_once_per_history(tmp_path) -> None:
    folder = save_format(tmp_path / "model")
    for histories, cached in [([200], [True, False]), ([200, 400], [True, True, False, False])]:
        seen: list[TurnFigures] = []
        result = await bench_turn(histories, 3, 1, seen.append, tokenizer=str(folder))
        assert [figures.cached for figures in seen] == cached
        assert len({figures.history_tokens for figures in seen}) == len(histories)
        assert len(result["budgets"]) == 4


async def test_phases_are_measured_with_and_without_the_switches(tmp_path) -> None:
    folder = save_format(tmp_path / "model")
    seen: list[PhaseFigures] = []
    result = await bench_phases(8, 4, seen.append, tokenizer=str(folder))
    assert [(figures.phase, figures.switched, figures.turns) for figures in seen] == [
        *((phase, False, 8) for phase in PHASES),
        *((phase, True, 4) for phase in PHASES),
    ]
    assert all(figures.first_ms > 0 for figures in seen if figures.phase == "classify")
    assert len(result["budgets"]) == 7


def test_stream_prints_its_budget_and_one_json_line(capsys) -> None:
    stream_command(num_events=200, rounds=1, as_json=True)
    *shown, last = capsys.readouterr().out.splitlines()
    assert any("token events over bare sends" in line and "≥ 0.50" in line for line in shown)
    (budget,) = json.loads(last)["budgets"]
    assert (budget["sign"], budget["budget"], budget["is_met"]) == ("≥", 0.5, budget["value"] >= 0.5)


def test_memory_of_other_runs_is_measured_without_a_verdict(capsys) -> None:
    memory_command(num_runs=2, num_tokens=100, as_json=False)
    assert "set for 4,000 tokens" in " ".join(capsys.readouterr().out.split())


# --- connections -------------------------------------------------------------------------------------------------


async def test_tcp_stream_ends_even_when_the_server_was_the_one_to_close() -> None:
    has_ended = trio.Event()

    async def close_first(stream: trio.SocketStream) -> None:
        ws = WSConnection(ConnectionType.SERVER)
        ws.receive_data(await stream.receive_some())
        assert [type(event) for event in ws.events()] == [Request]
        await stream.send_all(ws.send(AcceptConnection()) + ws.send(CloseConnection(code=1000)))
        while await stream.receive_some():
            pass
        has_ended.set()
        await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, close_first, listeners)
        with trio.fail_after(5):
            async with open_socket(listeners[0].socket.getsockname()[1]) as ws:
                with pytest.raises(ConnectionClosed):
                    await ws.get_message()
            await has_ended.wait()
        nursery.cancel_scope.cancel()


async def test_exception_of_the_block_comes_out_bare() -> None:
    async with open_peer("echo") as echo:
        with pytest.raises(RuntimeError, match="the run ended"):
            async with open_socket(echo.port, "/?sizes=1"):
                raise RuntimeError("the run ended")


# --- remote


def test_remote_holds_a_token_to_a_time_and_a_turn_to_its_growth() -> None:
    figures = [
        RemoteFigures(encoding, history, 3, cost, 9.0)
        for encoding in ("JSON", "msgpack + gzip")
        for history, cost in ((1_000, 2.0), (10_000, 2.5))
    ]
    rows = [figure.row() for figure in remote_budgets(TokenFigures(100, 1, 2_990.0, 120.0), figures)]
    assert rows == [
        ["a token at 2,990 a second", "120 µs", "≤ 100 µs", "missed"],
        ["a turn with JSON: 10,000 over 1,000 tokens of history", "1.25", "≤ 1.20", "missed"],
        ["a turn with msgpack + gzip: 10,000 over 1,000 tokens of history", "1.25", "≤ 1.20", "missed"],
    ]
    row = remote_budgets(TokenFigures(100, 1, 2_990.0, 120.0), figures[::2])[1].row()
    assert row[-1] == "needs two histories"


@pytest.mark.parametrize("is_chat", [False, True])
async def test_remote_measures_a_server_over_a_service(tmp_path, is_chat: bool) -> None:
    reported = []
    folder = "" if is_chat else str(save_format(tmp_path / "format"))
    result = await bench_remote(100, 1, 2, 1_000, reported.append, tokenizer=folder)
    assert result["tokens"]["cpu_us_per_token"] > 0
    assert [(one.encoding, one.history_tokens) for one in reported] == [("JSON", 1_000), ("msgpack + gzip", 1_000)]
    assert reported[0].body_bytes > reported[1].body_bytes > 100
