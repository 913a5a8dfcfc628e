"""The command line: what each command takes, in words a newcomer understands."""

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from engine.backends.pretrained import DEFAULT_MODEL
from engine.commands.bench import (
    local_command,
    memory_command,
    peers_command,
    phases_command,
    remote_command,
    stream_command,
    turn_command,
)
from engine.commands.compare import compare_command
from engine.commands.export import export_command
from engine.commands.index import index_command
from engine.commands.models import fetch_command, models_command
from engine.commands.probe import probe_command
from engine.commands.run import run_command
from engine.commands.serve import UsageError, read_settings, serve_command, show_settings
from engine.commands.usage import usage_command
from engine.settings import Settings

HELP = """A server for agent runs: one run is one long-lived Response.

Start with `longloop serve`, then `longloop run 'a question' --tool ./tools.py` in another terminal."""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


def _default(name: str) -> str:
    """What `--help` says of a setting's default, which comes from the settings and not from the flag."""
    return f"(default {Settings.model_fields[name].default})"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"longloop {version('longloop')}")
        raise typer.Exit()


@app.callback(help=HELP)
def _group(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    """Makes this a group of commands even while there is only one."""


@app.command()
def serve(
    backend: Annotated[
        str | None,
        typer.Option(
            help=f"`local`, `script:SCENARIO`, or a service: cerebras, vllm, llamacpp, openai {_default('backend')}"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"Hugging Face id, folder or .gguf file; a service's name for it {_default('model')}"),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="where the service is, if not at its usual place")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="the service's model's own: Hugging Face id, folder or .gguf file; token ids are exact then"),
    ] = None,
    host: Annotated[str | None, typer.Option(help=f"address to bind {_default('host')}")] = None,
    port: Annotated[int | None, typer.Option(help=f"TCP port, 0 for a free one {_default('port')}")] = None,
    allow_remote: Annotated[bool | None, typer.Option("--allow-remote", help="serve other machines")] = None,
    lifecycle: Annotated[str | None, typer.Option(help="lifecycle of connections that name none")] = None,
    keep_open: Annotated[bool | None, typer.Option("--keep-open", help="runs wait for the next user message")] = None,
    tools: Annotated[
        list[str] | None, typer.Option(help="file or module of functions that the server runs; repeatable")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as name=value; repeatable")] = None,
    show: Annotated[bool, typer.Option("--show-settings", help="print all settings and stop")] = False,
) -> None:
    """Serve runs on one port: WebSocket at /v1/responses, health at /healthz and /readyz."""
    flags = {
        "backend": backend,
        "model": model,
        "base_url": base_url,
        "tokenizer": tokenizer,
        "host": host,
        "port": port,
        "allow_remote": allow_remote,
        "lifecycle": lifecycle,
        "keep_open": keep_open,
        "tools": tools or None,
    }
    read = partial(read_settings, config, set_ or [], flags)
    if show:
        show_settings(read())
    else:
        serve_command(read(), read if config else None)


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(help="what the agent is asked")],
    tool: Annotated[list[Path] | None, typer.Option(help="Python file with functions the model may call")] = None,
    url: Annotated[str | None, typer.Option(help="a running server; without it one starts for this run")] = None,
    backend: Annotated[str | None, typer.Option(help="backend of the server that starts for this run")] = None,
    model: Annotated[str | None, typer.Option(help="model; with --url one that the server has")] = None,
    instructions: Annotated[str | None, typer.Option(help="the system prompt")] = None,
    keep_open: Annotated[bool, typer.Option("--keep-open", help="read further messages from stdin")] = False,
    trace: Annotated[Path | None, typer.Option(help="write every frame, both ways, to this file")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="LONGLOOP_API_KEY", help="key to present")] = None,
    tool_deadline_s: Annotated[float | None, typer.Option(help="seconds a tool may take")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="tokens the run may sample")] = None,
    mcp: Annotated[
        list[str] | None, typer.Option(help="tools that the server runs: LABEL of its functions, LABEL=URL of others")
    ] = None,
    approve: Annotated[bool, typer.Option("--approve", help="approve the calls of such tools")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per event, the result last")] = False,
) -> None:
    """One agent run from the terminal: items, tool calls, pauses and times as they happen."""
    code = run_command(
        prompt,
        tool_files=tool or [],
        url=url,
        backend=backend,
        model=model,
        instructions=instructions,
        keep_open=keep_open,
        trace=trace,
        api_key=api_key,
        as_json=as_json,
        tool_deadline_s=tool_deadline_s,
        max_output_tokens=max_output_tokens,
        mcp=mcp or [],
        approves=approve,
    )
    raise typer.Exit(code)


@app.command()
def models(
    fetch: Annotated[str | None, typer.Option(help="make this model ready (`default` for the default one)")] = None,
    probe: Annotated[
        str | None, typer.Option(help="ask a service what it does: cerebras, vllm, llamacpp or openai")
    ] = None,
    model: Annotated[str | None, typer.Option(help="with --probe: the service's name for the model")] = None,
    base_url: Annotated[str | None, typer.Option(help="with --probe: where it is, if not at its usual place")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as name=value; repeatable")] = None,
) -> None:
    """List the models that are here, make one ready ahead of time, or look at what a service really does."""
    if probe is not None:
        flags = {"backend": probe, "model": model, "base_url": base_url}
        raise typer.Exit(probe_command(read_settings(None, set_ or [], flags)))
    if fetch is None:
        models_command()
    else:
        fetch_command(DEFAULT_MODEL if fetch == "default" else fetch)


AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]


@app.command()
def compare(
    quick: Annotated[bool, typer.Option("--quick", help="one setting alone, three times; under two minutes")] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="runs of each; medians count (default 5, with --quick 3)")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="folder for what is measured; a comparison that was stopped goes on there")
    ] = Path("longloop-compare"),
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what the folder has already")] = False,
    model: Annotated[bool, typer.Option(help="the second table, on the default local model")] = True,
    config: Annotated[Path | None, typer.Option(help="TOML file; its model gets such a table, too")] = None,
    as_json: AsJson = False,
) -> None:
    """The designs side by side on the same work: time, bytes, and what each has to do again."""
    compare_command(quick=quick, rounds=rounds, out=out, fresh=fresh, config=config, model=model, as_json=as_json)


@app.command()
def usage(
    by: Annotated[str, typer.Option(help="columns to sum by, of day, model, principal")] = "day,model,principal",
    since: Annotated[str | None, typer.Option(help="first day (UTC), such as 2026-01-31")] = None,
    until: Annotated[str | None, typer.Option(help="last day")] = None,
    export: Annotated[str | None, typer.Option(help="print every segment instead: `jsonl` or `csv`")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; data_dir counts")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as name=value; repeatable")] = None,
) -> None:
    """What runs have used: tokens by day, model and key, also while the server runs."""
    settings = read_settings(config, set_ or [], {})
    usage_command(settings.data_dir, by=by, since=since, until=until, export=export)


@app.command()
def export(
    ids: Annotated[list[str] | None, typer.Argument(help="responses; without any, all that the store has")] = None,
    url: Annotated[str | None, typer.Option(help="a running server to ask; without it the store is read")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="LONGLOOP_API_KEY", help="key to present at --url")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; data_dir counts")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as name=value; repeatable")] = None,
) -> None:
    """Token trajectories as JSON lines: ids, which of them were sampled, log-probabilities, steps."""
    settings = read_settings(config, set_ or [], {})
    export_command(settings.data_dir, ids or [], url=url, api_key=api_key)


@app.command()
def index(
    folder: Annotated[
        Path | None, typer.Argument(help="folder that models may search; without one all are listed")
    ] = None,
    name: Annotated[str | None, typer.Option(help="what responses call it (default: the folder's name)")] = None,
    remove: Annotated[str | None, typer.Option(help="forget the folder of this name")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; data_dir counts")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as name=value; repeatable")] = None,
) -> None:
    """Make a folder's files searchable for models (file_search). Run again, it reads what has changed."""
    index_command(read_settings(config, set_ or [], {}).data_dir, folder, name=name, remove=remove)


bench = typer.Typer(
    help="Benchmarks: each measures a bare peer beside longloop and reports ratios.", no_args_is_help=True
)
app.add_typer(bench, name="bench")


@bench.command("turn")
def bench_turn(
    turns: Annotated[int, typer.Option(min=1, help="turns per history")] = 300,
    control_turns: Annotated[int, typer.Option(min=1, help="turns of the control without token cache")] = 5,
    longest: Annotated[int, typer.Option(min=1_000, help="longest history, in tokens")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """From an append to the first event of the next step, at histories from 1,000 tokens on."""
    turn_command(turns=turns, control_turns=control_turns, longest=longest, as_json=as_json)


@bench.command("phases")
def bench_phases(
    turns: Annotated[int, typer.Option(min=4, help="turns of one run")] = 1_000,
    control_turns: Annotated[
        int, typer.Option(min=4, help="turns of the control that looks at everything again")
    ] = 200,
    as_json: AsJson = False,
) -> None:
    """Validating, classifying, rendering, recording: the time of each by the turn's number."""
    phases_command(turns=turns, control_turns=control_turns, as_json=as_json)


@bench.command("stream")
def bench_stream(
    events: Annotated[int, typer.Option(min=100, help="token events per round")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="rounds; the median counts")] = 5,
    as_json: AsJson = False,
) -> None:
    """Token events per second on one connection, beside bare sends of the same frame."""
    stream_command(num_events=events, rounds=rounds, as_json=as_json)


@bench.command("local")
def bench_local(
    model: Annotated[str, typer.Option(help="as for `longloop serve`")] = DEFAULT_MODEL,
    longest: Annotated[int, typer.Option(min=512, help="longest history, in tokens: 512, 2,048 and 7,600")] = 7_600,
    largest: Annotated[int, typer.Option(min=1, help="most streams at a time: 1, 4 and 8")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="rounds; the quickest counts")] = 5,
    as_json: AsJson = False,
) -> None:
    """The local model through the served protocol, beside the bare model loop."""
    local_command(model=model, longest=longest, largest=largest, rounds=rounds, as_json=as_json)


@bench.command("peers")
def bench_peers(
    model: Annotated[str, typer.Option(help="as for `longloop serve`")] = DEFAULT_MODEL,
    initial: Annotated[int, typer.Option(min=1, help="tokens of the first text")] = 280,
    grow: Annotated[int, typer.Option(min=1, help="tokens of each tool's output")] = 277,
    turns: Annotated[int, typer.Option(min=1, help="turns of the run")] = 10,
    peer: Annotated[
        list[str] | None, typer.Option(help="NAME=URL[=MODEL]: a running server of the same model, URL up to /v1")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """An agent run on longloop, `transformers serve` and llama.cpp (demos/peers.sh installs them), on one model."""
    peers_command(model=model, initial=initial, grow=grow, turns=turns, others=peer or [], as_json=as_json)


@bench.command("memory")
def bench_memory(
    runs: Annotated[int, typer.Option(min=1, help="paused runs to weigh")] = 200,
    tokens: Annotated[int, typer.Option(min=100, help="output tokens of each")] = 4_000,
    as_json: AsJson = False,
) -> None:
    """Resident bytes of a paused run beside a bare connection."""
    memory_command(num_runs=runs, num_tokens=tokens, as_json=as_json)


@bench.command("remote")
def bench_remote(
    tokens: Annotated[int, typer.Option(min=100, help="tokens of a round, at 3,000 a second")] = 6_000,
    rounds: Annotated[int, typer.Option(min=1, help="rounds; the median counts")] = 5,
    turns: Annotated[int, typer.Option(min=1, help="turns per history")] = 40,
    longest: Annotated[int, typer.Option(min=1_000, help="longest history, in tokens")] = 100_000,
    chat: Annotated[bool, typer.Option("--chat", help="the chat route; without it the raw one")] = False,
    as_json: AsJson = False,
) -> None:
    """The server's own processor time for a token and for a turn, when a service does the sampling."""
    remote_command(num_tokens=tokens, rounds=rounds, turns=turns, longest=longest, is_chat=chat, as_json=as_json)


def main() -> None:
    """Entry point of `longloop`."""
    try:
        app()
    except UsageError as error:
        print(f"longloop: {error}", file=sys.stderr)
        raise SystemExit(2) from None
