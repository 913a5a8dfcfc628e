"""The worker of a classifier: a process that holds one model and scores the texts that the server sends.

    python -m engine.safety.worker FOLDER --threads 1

Built as the model worker is (backends/worker.py): frames on stdin and stdout, torch on the main thread alone, and an
end as soon as stdin ends. Texts are scored one by one, oldest first; what nobody waits for any more is left out.
"""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from engine.backends.frames import Failed, Loading
from engine.backends.worker import Output, read_commands, waiting
from engine.safety.frames import Command, Forget, Score, Scored, Up, command_reader

log = logging.getLogger(__name__)


class Scores(Protocol):
    """See `scorer.Scorer`."""

    labels: list[str]

    def score(self, text: str) -> dict[str, float]: ...


def load(args: argparse.Namespace, output: Output) -> Scores:
    """Load the model, reporting each stage."""
    output.send([Loading("libraries", 0, 1)])
    # Not at the top: stdout must be ours before a library can print.
    from transformers.utils import logging as transformers_logging

    from engine.safety.scorer import load_scorer

    transformers_logging.disable_progress_bar()
    output.send([Loading("libraries", 1, 1)])
    return load_scorer(
        args.folder,
        threads=args.threads,
        progress=lambda stage, done, total: output.send([Loading(stage, done, total)]),
    )


def run(scorer: Scores, commands: SimpleQueue[Command], output: Output) -> None:
    """Work for ever: all that has come, then one text; sleep while there is none."""
    texts: dict[int, str] = {}
    while True:
        for command in waiting(commands, block=not texts):
            match command:
                case Score(number, text):
                    texts[number] = text
                case Forget(number):
                    texts.pop(number, None)
        if texts:
            number = next(iter(texts))
            output.send([Scored(number, _score(scorer, texts.pop(number)))])


def _score(scorer: Scores, text: str) -> dict[str, float] | None:
    try:
        return scorer.score(text)
    except Exception:  # one text that a model cannot take must not take the others with it
        log.exception("a text could not be scored")
        return None


def main(argv: list[str], load: Callable[[argparse.Namespace, Output], Scores] = load) -> int:
    """The process. load: for tests, which need no model."""
    parser = argparse.ArgumentParser(prog="engine.safety.worker", description="Classifier; started by the server.")
    parser.add_argument("folder", type=Path, help="config.json, safetensors and tokenizer.json")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    output = Output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server decides when we end
    commands: SimpleQueue[Command] = SimpleQueue()
    threading.Thread(target=read_commands, args=(commands, command_reader()), daemon=True).start()
    try:
        scorer = load(args, output)
    except Exception as error:  # whatever is wrong with the model, the server shall say it
        output.send([Failed(0, 0, f"{type(error).__name__}: {error}")])
        raise
    output.send([Up(scorer.labels)])
    run(scorer, commands, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
