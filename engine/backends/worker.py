"""The model worker: a process that holds the model and does nothing but what the server's frames ask.

    python -m engine.backends.worker FOLDER --dtype bfloat16 --threads 2

Commands come on stdin, reports leave on what was stdout at the start. The main thread loads and runs the model (see
`model.py` for why it must be one thread); a second one waits for stdin, and when that ends, ends the process at once,
in the middle of a step or of loading: the server is gone or does not want us any more, and nothing here outlives it.
A model that fails in a step is left to crash: the server has the tokens and starts another worker.

The environment is the server's. OpenMP's threads spin while they wait for each other: right for a machine of one's
own, but beside one other busy process on two cores a step of 28 ms took 150 to 1000 ms (measured). On a shared machine
set OMP_WAIT_POLICY=passive, or leave a core free with --threads.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec

from engine.backends.frames import Command, CommandReader, Failed, FrameReader, Loading, Ready, Report, encode
from engine.backends.jobs import Jobs
from engine.backends.scheduler import Pace

T = TypeVar("T")
_READ_BYTES = 1 << 16


class Output:
    """Where reports go: the process's stdout, taken away from everybody else."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)  # what libraries print would cut frames in two

    def send(self, reports: Iterable[msgspec.Struct]) -> None:
        """Write them all. Raises BrokenPipeError when the server is gone."""
        data = memoryview(b"".join(map(encode, reports)))
        while data:
            data = data[os.write(self._fd, data) :]


def read_commands(commands: SimpleQueue[T], reader: FrameReader[T]) -> None:
    """Pass on what comes on stdin; end the process when nothing can come any more."""
    while data := os.read(0, _READ_BYTES):
        for command in reader.feed(data):
            commands.put(command)
    os._exit(0)


def load(args: argparse.Namespace, output: Output, began: float) -> Jobs:
    """Load model and guides, reporting each stage and the end. began: when the process did."""
    output.send([Loading("libraries", 0, 1)])
    # Not at the top: stdout must be ours before a library can print, and these imports are half the start's time.
    from transformers.utils import logging

    from engine.backends import loading
    from engine.backends.guide import Guides

    logging.disable_progress_bar()
    output.send([Loading("libraries", 1, 1)])
    loaded = loading.load(
        args.folder,
        dtype=args.dtype,
        threads=args.threads,
        device=args.device,
        progress=lambda stage, done, total: output.send([Loading(stage, done, total)]),
    )
    file = args.folder / "tokenizer.json"
    guides = Guides(file, vocab_size=loaded.vocab_size, stop_ids=args.stop_ids)
    output.send([Ready(loaded.kv_bytes_per_token, loaded.vocab_size, 1e3 * (time.perf_counter() - began))])
    return Jobs(loaded, guides, time.perf_counter, Pace(args.max_step_ms / 1e3))


def run(jobs: Jobs, commands: SimpleQueue[Command], output: Output) -> None:
    """Work for ever: commands first, then a step; sleep while there is neither."""
    while True:
        reports: list[Report] = []
        for command in waiting(commands, block=jobs.is_idle):
            reports += jobs.handle(command)
        reports += jobs.step()
        output.send(reports)


def waiting(commands: SimpleQueue[T], *, block: bool) -> Iterator[T]:
    """Commands that are there; with `block` at least one."""
    try:
        if block:
            yield commands.get()
        while True:
            yield commands.get_nowait()
    except Empty:
        return


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="engine.backends.worker", description="Model worker; started by the server.")
    parser.add_argument("folder", type=Path, help="config.json, safetensors and tokenizer.json")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as help")
    parser.add_argument("--max-step-ms", type=int, default=250, help="how long a step that takes prompts in may be")
    parser.add_argument("--stop-ids", type=int, nargs="+", required=True, help="ids that end a step")
    return parser.parse_args(argv)


def main(argv: list[str], load: Callable[[argparse.Namespace, Output, float], Jobs] = load) -> int:
    """The process. load: for tests, which need no model."""
    began = time.perf_counter()
    args = parse_args(argv)
    output = Output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server decides when we end
    commands: SimpleQueue[Command] = SimpleQueue()
    threading.Thread(target=read_commands, args=(commands, CommandReader()), daemon=True).start()
    try:
        jobs = load(args, output, began)
    except Exception as error:  # the one catch-all: whatever is wrong with the model, the server shall say it
        output.send([Failed(0, 0, f"{type(error).__name__}: {error}")])
        raise
    run(jobs, commands, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
