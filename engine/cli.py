"""The command line: what each command takes, in words a newcomer understands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.commands.serve import UsageError, read_settings, serve_command, show_settings

app = typer.Typer(
    help="A server for agent runs: one run is one long-lived Response.\n\n"
    "Start with `longloop serve`, then `longloop run 'a question' --tool ./tools.py` in another terminal.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@app.command()
def serve(
    backend: Annotated[str | None, typer.Option(help="`local` (default) or `script:SCENARIO`")] = None,
    model: Annotated[str | None, typer.Option(help="default model, Hugging Face id, folder or .gguf file")] = None,
    host: Annotated[str | None, typer.Option(help="address to bind")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port, 0 for a free one")] = None,
    allow_remote: Annotated[bool | None, typer.Option("--allow-remote", help="serve other machines")] = None,
    lifecycle: Annotated[str | None, typer.Option(help="lifecycle of connections that name none")] = None,
    keep_open: Annotated[bool | None, typer.Option("--keep-open", help="runs wait for the next user message")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as name=value; repeatable")] = None,
    show: Annotated[bool, typer.Option("--show-settings", help="print all settings and stop")] = False,
) -> None:
    """Serve runs on one port: WebSocket at /v1/responses, health at /healthz and /readyz."""
    flags = {
        "backend": backend,
        "model": model,
        "host": host,
        "port": port,
        "allow_remote": allow_remote,
        "lifecycle": lifecycle,
        "keep_open": keep_open,
    }
    settings = read_settings(config, set_ or [], flags)
    if show:
        show_settings(settings)
    else:
        serve_command(settings)


def main() -> None:
    """Entry point of `longloop`."""
    try:
        app()
    except UsageError as error:
        print(f"longloop: {error}", file=sys.stderr)
        raise SystemExit(2) from None
