"""Imports point down. A new module is put into the table, which is where one decides what it may know of."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ENGINE = Path(__file__).parent.parent / "engine"

# Top to bottom; a module may import from its own layer (without cycles) and from those below.
LAYERS: dict[str, str] = {
    "surface": """
        __main__
        bench
        bench/bare_model
        bench/budgets
        bench/engines
        bench/llama_server
        bench/local
        bench/machine
        bench/memory
        bench/peers
        bench/phases
        bench/processes
        bench/remote
        bench/service
        bench/replay
        bench/sockets
        bench/stream
        bench/turn
        cli
        client
        client_driver
        client_fake
        client_lanes
        client_outbox
        client_state
        client_tools
        client_wire
        commands
        commands/backend
        commands/bench
        commands/compare
        commands/export
        commands/index
        commands/models
        commands/probe
        commands/run
        commands/serve
        commands/usage
        compare
        compare/claims
        compare/commands
        compare/designs
        compare/fitted
        compare/folder
        compare/growth
        compare/link
        compare/measure
        compare/over_http
        compare/over_websocket
        compare/page
        compare/plan
        compare/played
        compare/plots
        compare/real
        compare/report
        compare/results
        compare/run
        compare/summary
        compare/tables
        compare/target
        compare/tls
        compare/work
        server
        server/access
        server/app
        server/coding
        server/contents
        server/conversations
        server/exchange
        server/frame_stream
        server/handshake
        server/heartbeat
        server/http
        server/http_connection
        server/lane_writer
        server/lanes
        server/query
        server/rate_limits
        server/reader
        server/replay
        server/routes
        server/runs
        server/sse
        server/steering
        server/table
        server/timing
        server/websocket
        server/wire
        timeline
        timeline_view
    """,
    "responses": """
        appending
        archive
        compacting
        conversations
        hosting
        opening
        recall
        references
        records
        responses
        run_table
        vetting
        till
    """,
    "loop": """
        compaction
        loop
    """,
    "live": """
        live
        recorder
    """,
    "impure leaves": """
        backends/attention
        backends/convert
        backends/linears
        backends/llama
        backends/loading
        backends/local
        backends/local_pool
        backends/model
        backends/pretrained
        backends/prompt
        backends/ragged
        backends/remote/awaited
        backends/remote/chat
        backends/remote/chat_sequence
        backends/remote/lines
        backends/remote/link
        backends/remote/opening
        backends/remote/probe
        backends/remote/raw
        backends/remote/raw_prompt
        backends/remote/raw_turn
        backends/remote/services
        backends/remote/trial
        backends/router
        backends/script
        backends/script_prompt
        backends/script_step
        backends/stacked_kv
        backends/token_sequence
        backends/worker
        backends/worker_link
        database
        customtool
        group_commit
        hosted/code_interpreter
        hosted/configured
        hosted/fake
        hosted/cell
        hosted/containers
        hosted/fetch
        hosted/file_index
        hosted/file_search
        hosted/functions
        hosted/guarded
        hosted/reading
        hosted/mcp_host
        hosted/remote_mcp
        hosted/runner
        hosted/toolbox
        hosted/web
        hosted/web_results
        hosted/web_search
        hosted/limited
        hosted/sandbox
        ledger_database
        ledger_fake
        ledger_journal
        ledger_reader
        safety/configured
        safety/guard
        safety/lookout
        safety/model_judge
        safety/scorer
        safety/worker
        meter
        sqlite_ledger
        sqlite_store
        store_fake
        store_reader
        toolcall
        toolfile
        toolschema
    """,
    "pure machines": """
        answers
        backends/admission
        backends/ahead
        backends/arguments
        backends/call_grammar
        backends/call_syntax
        backends/context
        backends/custom_grammar
        backends/default_model
        backends/detokenizer
        backends/families
        backends/frames
        backends/grammar
        backends/guide
        backends/harmony
        backends/headers
        backends/job
        backends/jobs
        backends/json_scanner
        backends/kv_cache
        backends/lark
        backends/literals
        backends/manners
        backends/logprobs
        backends/model_facts
        backends/parser
        backends/pieces
        backends/playback
        backends/probe
        backends/prompt_format
        backends/remote
        backends/remote/chat_calls
        backends/remote/chat_chunks
        backends/remote/chat_context
        backends/remote/chat_deltas
        backends/remote/chat_messages
        backends/remote/chat_request
        backends/remote/chat_step
        backends/remote/chat_tools
        backends/remote/chat_turn
        backends/remote/dialect
        backends/remote/dialect_completions
        backends/remote/dialect_llama
        backends/remote/dialects
        backends/remote/encoding
        backends/remote/growing
        backends/remote/hold
        backends/remote/rate_limits
        backends/remote/sse
        backends/remote/told
        backends/routed_sequence
        backends/sampling
        backends/scenario
        backends/scenario_fields
        backends/scenario_values
        backends/scheduler
        backends/schema_faults
        backends/script_calls
        backends/script_context
        backends/script_take
        backends/template
        backends/text_reader
        backends/thinking
        backends/token_step
        backends/toolset
        backends/transformers_parser
        backends/turns
        backends/vocabulary
        backends/words
        bill
        bodies
        budget
        calls
        continuation
        digests
        echo
        folded
        frames
        growing
        history
        hosted/addresses
        hosted/base
        hosted/builtin_shapes
        hosted/file_filters
        hosted/kinds
        hosted/page_text
        hosted/passages
        hosted/mcp_definition
        hosted/shapes
        hosted_calls
        hosted_writer
        hosted/seccomp
        item_style
        journal
        left_out
        listing
        log
        made
        outgoing
        parameters
        progress
        request
        resolving
        response
        response_object
        response_state
        revival
        routing
        safety/fake
        safety/frames
        safety/gate
        safety/judge
        safety/patterns
        safety/policies
        safety/secrets
        safety/stretch
        safety/views
        safety/watch
        scaffold
        scaffold_call
        scaffold_compaction
        scaffold_message
        scaffold_reasoning
        session
        tool_choice
        trajectory
        truncation
        writer
    """,
    "values": """
        __init__
        backends
        backends/base
        backends/chance
        backends/constraint
        backends/rate_limit
        backends/remote/errors
        clock
        content
        data_folder
        docstrings
        encodable
        errors
        events
        hosted
        hosted_events
        item_events
        ids
        items
        json_input
        keyfile
        ledger
        safety
        safety/config
        safety/expression
        safety/verdict
        schema
        sealing
        settings
        sorted_list
        status
        store
        tokens
        toolspec
        trace
        usage
    """,
}
PURE = ("pure machines", "values")
OF_A_WORKER = "attention convert guide linears llama loading model ragged sampling stacked_kv worker"
TORCH = {f"backends/{name}" for name in OF_A_WORKER.split()} | {"safety/scorer"}
# The server's connection and the client's wire; beside them what is compared with bare trio-websocket, and a fake.
TRIO_WEBSOCKET = {
    "bench/local",
    "bench/replay",
    "server/websocket",
    "client_wire",
    "client_fake",
    "bench/memory",
    "bench/peers",
    "bench/remote",
    "bench/sockets",
    "bench/stream",
    "bench/turn",
    "compare/over_websocket",
}

PLACE = {name: number for number, names in enumerate(LAYERS.values()) for name in names.split()}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}


def module_name(file: Path) -> str:
    """The module's path in the package: `backends/base`, and `backends` for its `__init__`."""
    name = file.relative_to(ENGINE).with_suffix("").as_posix()
    return name.removesuffix("/__init__")


FILES = {module_name(file): file for file in sorted(ENGINE.rglob("*.py"))}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


def imported(node: ast.AST) -> Iterator[str]:
    """The dotted names that an import statement may mean: `from a import b` is `a` and `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(name: str) -> set[str]:
    """The modules of the engine that this one imports, inside functions too."""
    found = {dotted for node in ast.walk(tree(name)) for dotted in imported(node)}
    paths = {dotted.removeprefix("engine.").replace(".", "/") for dotted in found if dotted.startswith("engine.")}
    return {path for path in paths & FILES.keys() if path != "backends"} - {name}


def foreign_imports(name: str) -> set[str]:
    return {dotted.partition(".")[0] for node in ast.walk(tree(name)) for dotted in imported(node)}


def test_every_module_has_a_place() -> None:
    assert FILES.keys() - PLACE.keys() == set(), "put new modules into LAYERS"
    assert sum(len(names.split()) for names in LAYERS.values()) == len(PLACE), "a module is listed twice"


@pytest.mark.parametrize("name", FILES)
def test_imports_point_down(name: str) -> None:
    if name not in PLACE:
        pytest.fail(f"{name} is in no layer")
    upward = {other for other in own_imports(name) if PLACE.get(other, 0) < PLACE[name]}
    assert upward == set(), f"{LAYER_OF[name]} must not know of {upward}"


def test_there_are_no_cycles() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " > ".join((*path, name))
        if name not in done:
            for other in own_imports(name):
                visit(other, (*path, name))
            done.add(name)

    for name in FILES:
        visit(name, ())


@pytest.mark.parametrize("name", [name for name in FILES if LAYER_OF.get(name) in PURE])
def test_pure_modules_know_no_driver(name: str) -> None:
    drivers = {"trio", "trio_websocket", "h11", "socket", "asyncio", "threading", "httpx2", "sqlite3"}
    if name not in TORCH:
        drivers.add("torch")
    assert foreign_imports(name) & drivers == set()


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("torch", TORCH),
        ("trio_websocket", TRIO_WEBSOCKET),
        (
            "httpx2",
            {
                "backends/remote/link",
                "bench/replay",
                "hosted/fetch",
                "hosted/guarded",
                "hosted/remote_mcp",
                "hosted/web",
                "hosted/web_search",
            },
        ),
        ("mcp", {"hosted/remote_mcp"}),
        ("sqlite3", {"database", "hosted/file_index", "ledger_database", "ledger_reader"}),
    ],
)
def test_only_these_modules_import(library: str, users: set[str]) -> None:
    assert {name for name in FILES if library in foreign_imports(name)} <= users


@pytest.mark.parametrize("name", FILES)
def test_nobody_connects_by_what_leaves_sockets_open(name: str) -> None:
    names = {node.id for node in ast.walk(tree(name)) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree(name)) if isinstance(node, ast.Attribute)}
    # See bench/sockets.py: their TCP stream stays open when the server closes first.
    assert names & {"open_websocket", "open_websocket_url", "connect_websocket", "connect_websocket_url"} == set()


@pytest.mark.parametrize("name", FILES)
def test_imports_inside_functions_say_what_they_keep_out(name: str) -> None:
    lines = FILES[name].read_text().splitlines()
    for function in ast.walk(tree(name)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                around = " ".join(lines[max(node.lineno - 6, 0) : node.lineno])
                assert "#" in around, f"{FILES[name].name}:{node.lineno} needs its reason in a comment"
