"""Other servers of the same model on this machine, for `longloop bench peers`; who is not installed is not measured.

`demos/peers.sh` installs transformers' own server and llama.cpp's. Any other one that speaks the chat completions API
can take part by its URL.
"""

import importlib.util
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from engine.backends.default_model import find_file
from engine.backends.pretrained import DEFAULT_MODEL
from engine.bench.processes import LineReader, open_process

START_S: Final = 300


class NotMeasured(Exception):
    """Why an engine cannot take part."""


@dataclass(frozen=True)
class Engine:
    """A server that listens: its name in the table, where its API is, what it calls the model."""

    name: str
    base_url: str
    model: str


@asynccontextmanager
async def open_transformers(folder: Path) -> AsyncIterator[Engine]:
    """`transformers serve` on a model's folder. Raises NotMeasured."""
    program = Path(sys.executable).parent / "transformers"
    if not program.exists() or importlib.util.find_spec("fastapi") is None:
        raise NotMeasured("transformers[serving] is not installed (demos/peers.sh)")
    port = free_port()
    flags = ("--device", "cpu", "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port))
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    async with open_process("serve", str(folder), *flags, program=str(program), environment=environment) as process:
        await wait_listening(process, port)
        yield Engine("transformers serve", f"http://127.0.0.1:{port}/v1", str(folder))


@asynccontextmanager
async def open_llama_cpp(file: Path) -> AsyncIterator[Engine]:
    """llama.cpp's server on a GGUF file. Raises NotMeasured."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise NotMeasured("xllamacpp is not installed (demos/peers.sh)")
    port = free_port()
    async with open_process("-m", "engine.bench.llama_server", str(file), str(port)) as process:
        assert process.stdout is not None
        with trio.fail_after(START_S):
            await LineReader(process.stdout).next_line()
        yield Engine("llama.cpp", f"http://127.0.0.1:{port}/v1", "default")


@contextmanager
def gguf_of(model: str) -> Iterator[Path]:
    """The GGUF file of the same model. Raises NotMeasured when there is none."""
    if model.endswith(".gguf"):
        yield Path(model)
    elif model == DEFAULT_MODEL:
        with tempfile.TemporaryDirectory() as folder:
            yield find_file(Path(folder), lambda *_: None)
    else:
        raise NotMeasured("llama.cpp needs the model as a .gguf file")


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def wait_listening(process: trio.Process, port: int) -> None:
    """Wait until it takes connections. Raises NotMeasured when it ends, or takes too long."""
    with trio.move_on_after(START_S):
        while process.poll() is None:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.2)
            else:
                await stream.aclose()
                return
    raise NotMeasured("it did not start")
