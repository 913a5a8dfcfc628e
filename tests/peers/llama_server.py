"""llama.cpp's own server as a process: `python -m tests.peers.llama_server FILE.gguf PORT TEMPLATE` prints its URL.

It serves until its stdin ends. The server comes from the wheel `xllamacpp`, which runs it in threads of the process
that asks for it; there it could not be stopped.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

import trio

from tests.peers.npm import ROOT

_START_S: Final = 60
# The default model's own template has no tools. Calls are bare JSON here, which a model that small writes after a few
# examples; llama.cpp makes its grammar and its parser from the template.
TEMPLATE: Final = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
    {{- 'Answer with a call of one of these functions.' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


class LlamaServer:
    """A running server and where it is, without `/v1`."""

    def __init__(self, file: Path, template: str) -> None:
        self.url = ""
        self._file = file
        self._template = template
        self._process: trio.Process | None = None

    async def start(self) -> None:
        """Start it, where it was before if it was."""
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "tests.peers.llama_server", str(self._file), port, self._template]
        self._process = await trio.lowlevel.open_process(
            command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=str(ROOT)
        )
        assert self._process.stdout is not None
        line = b""
        with trio.fail_after(_START_S):
            while not line.endswith(b"\n"):
                part = await self._process.stdout.receive_some()
                assert part, "the server did not start"
                line += part
        self.url = line.decode().strip()

    async def kill(self) -> None:
        """Let it die on the spot."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with trio.CancelScope(shield=True):  # killed, so it is over at once
            await process.wait()
            for stream in (process.stdout, process.stdin):
                assert stream is not None
                await stream.aclose()

    async def restart(self) -> None:
        """Kill it, and start another one in its place."""
        await self.kill()
        await self.start()


@asynccontextmanager
async def open_llama_server(file: Path, template: str = "") -> AsyncIterator[LlamaServer]:
    """A server of this model. template: in place of the model's own."""
    server = LlamaServer(file, template)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()


def _serve(file: str, port: int, template: str) -> None:
    from xllamacpp import CommonParams, Server  # not for those who import this file

    params = CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = 4096, 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.use_jinja, params.chat_template = True, template
    params.port, params.verbosity = port, -1
    server = Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
