"""llama.cpp's own server as a process: `python -m engine.bench.llama_server FILE.gguf PORT`, until its input ends.

It comes from the wheel `xllamacpp`, which runs it in threads of the process that asks for it.
"""

import os
import sys
from typing import Final

_CONTEXT: Final = 8192
_SLOTS: Final = 2


def serve(file: str, port: int) -> None:
    """Load the file and serve it; says its address when it is there."""
    # Not for those who only look whether it is there.
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = _CONTEXT * _SLOTS, _SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    params.port, params.verbosity = port, -1
    server = Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
