"""worker.py as a real process: frames in, frames out, and its end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from engine.backends.frames import (
    Command,
    Drop,
    Extend,
    Failed,
    Finished,
    Loading,
    Ready,
    Report,
    ReportReader,
    Sample,
    Sampled,
    Stop,
    encode,
)
from engine.backends.worker import parse_args, waiting
from tests.tiny import STOP_ID, VOCAB_SIZE
from tests.tiny_model import make_network, save_model

PROMPT = [int(id_) for id_ in np.random.default_rng(1).integers(3, 280, 600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


class Worker:
    """The process, spoken to in blocking calls."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self._reader = ReportReader()
        self._reports: list[Report] = []

    def tell(self, *commands: Command) -> None:
        self.process.stdin.write(b"".join(map(encode, commands)))
        self.process.stdin.flush()

    def next(self) -> Report:
        while not self._reports:
            data = self.process.stdout.read1(65536)
            assert data, "the worker has ended"
            self._reports = self._reader.feed(data)
        return self._reports.pop(0)

    def until(self, kind: type[Report]) -> list[Report]:
        reports = [self.next()]
        while not isinstance(reports[-1], kind):
            reports.append(self.next())
        return reports


@contextmanager
def started(folder) -> Iterator[Worker]:
    """A worker in float32 on one thread; whatever happens, it is gone after 60 s or at the end of the block."""
    argv = [sys.executable, "-m", "engine.backends.worker", str(folder), "--stop-ids", str(STOP_ID)]
    argv += ["--dtype", "float32", "--threads", "1"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def greedy(ids: list[int], count: int) -> list[int]:
    """Stock transformers' choice."""
    network, context = make_network(), list(ids)
    with torch.inference_mode():
        for _ in range(count):
            context.append(int(network(torch.tensor([context])).logits[0, -1].argmax()))
    return context[len(ids) :]


def sample(job: int, seq: int, count: int) -> Sample:
    return Sample(seq, job, count, [STOP_ID], seed=0, temperature=0.0)


def ids_of(reports: list[Report], job: int) -> list[int]:
    return [id_ for report in reports if isinstance(report, Sampled) and report.job == job for id_ in report.ids]


def test_it_loads_samples_stops_resumes_and_ends_with_its_stdin(folder):
    with started(folder) as worker:
        loading = worker.until(Ready)
        assert {report.stage for report in loading[:-1]} == {"libraries", "weights", "warm-up"}
        assert all(isinstance(report, Loading) for report in loading[:-1])
        assert (loading[-1].vocab_size, loading[-1].kv_bytes_per_token) == (VOCAB_SIZE, 512)

        worker.tell(Extend(1, 0, PROMPT), sample(1, 1, 8))
        first = worker.until(Finished)
        assert ids_of(first, 1) == greedy(PROMPT, 8)
        assert (first[-1].reused, first[-1].prefilled) == (0, 600)

        given = [50, 60, 70]
        worker.tell(Extend(1, 608, given), Extend(2, 0, PROMPT[:40]), sample(2, 1, 8), sample(3, 2, 8))
        second = [*worker.until(Finished), *worker.until(Finished)]
        assert ids_of(second, 2) == greedy(PROMPT + ids_of(first, 1) + given, 8)
        assert ids_of(second, 3) == greedy(PROMPT[:40], 8)
        assert {(end.reused, end.prefilled) for end in second if isinstance(end, Finished)} == {(607, 4), (0, 40)}

        worker.tell(Extend(1, 0, PROMPT * 5), sample(4, 1, 500), Stop(1, 4), Drop(1), sample(5, 1, 1))
        assert worker.until(Failed)[-1] == Failed(1, 5, "the worker does not have this sequence", is_lost=True)

        worker.tell(Extend(3, 0, PROMPT * 5), sample(6, 3, 1000))
        worker.process.stdin.close()
        assert worker.process.wait(timeout=20) == 0


def test_a_folder_without_a_model_is_reported(tmp_path):
    with started(tmp_path) as worker:
        report = worker.until(Failed)[-1]
        assert report.job == 0
        assert str(tmp_path) in report.message
        assert worker.process.wait(timeout=20) == 1


def test_waiting_takes_all_that_is_there():
    commands: SimpleQueue[Command] = SimpleQueue()
    assert list(waiting(commands, block=False)) == []
    for command in (Drop(1), Drop(2)):
        commands.put(command)
    assert list(waiting(commands, block=True)) == [Drop(1), Drop(2)]


def test_arguments_have_defaults_but_for_the_stop_ids(capsys):
    args = parse_args(["folder", "--stop-ids", "2", "3"])
    assert (args.device, args.dtype, args.threads, args.stop_ids) == ("auto", "auto", 0, [2, 3])
    with pytest.raises(SystemExit):
        parse_args(["folder"])
