"""Many runs paused and some sampling on the local model for a long time: no growth, no stall, logs that replay.

    python -m tests.soak_local --seconds 3600 --paused 64 --running 8

A run is taken up, gets about fifty tokens, samples, and rests; a long one ends, and another begins in its place. The
KV budget is too small for all of them, so that those paused for longest are prefilled anew. Exit status 1 when the
worker grew, a stream stood still for too long, or a token is not what the model says there.
"""

import argparse
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import torch
import trio
from transformers import AutoModelForCausalLM

from engine.backends.base import RunSpec, StepEnd, StepSpec
from engine.backends.local import LocalBackend, LocalModel, open_local_backend
from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.token_sequence import TokenSequence
from engine.items import Message
from engine.tokens import TokenLog

TEXT = "the run waits for a tool that looks up rows of data and says what it found in them today"
WORDS = TEXT.split()


@dataclass
class Soak:
    """What was seen. gaps: seconds between one part of a step and the next; resident: bytes of the worker, by time."""

    max_context: int
    num_steps: int = 0
    gaps: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    logs: deque[TokenLog] = field(default_factory=lambda: deque(maxlen=16))

    @property
    def growth(self) -> float:
        """The worker's size in the last quarter over that in the second: the first is for filling up."""
        quarter = max(1, len(self.resident) // 4)
        return median(self.resident[-quarter:]) / median(self.resident[quarter : 2 * quarter] or self.resident)


async def soak(backend: LocalBackend, of_run: RunSpec, seconds: float, paused: int, running: int, seen: Soak) -> None:
    """Let them go on for so long."""
    rng = Random(0)
    resting = deque(backend.open_sequence(of_run) for _ in range(paused + running))
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, backend, seen)
            for _ in range(running):
                nursery.start_soon(_take_turns, backend, of_run, rng, resting, seen)
    for sequence in resting:
        sequence.close()


async def _watch(backend: LocalBackend, seen: Soak) -> None:
    while True:
        pages = int(Path(f"/proc/{backend.worker_pid}/statm").read_text().split()[1])
        seen.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
        await trio.sleep(0.5)


async def _take_turns(
    backend: LocalBackend, of_run: RunSpec, rng: Random, resting: deque[TokenSequence], seen: Soak
) -> None:
    while True:
        sequence = resting.popleft() if rng.random() < 0.5 else resting.pop()
        if sequence.num_context_tokens > seen.max_context:
            seen.logs.append(sequence.tokens)
            sequence.close()
            sequence = backend.open_sequence(of_run)
        text = " ".join(rng.choice(WORDS) for _ in range(50))
        sequence.commit(await sequence.prepare([Message(role="user", content=text)]))
        sequence.start_step(StepSpec(max_tokens=rng.randrange(8, 48)))
        before = None
        while True:
            deltas = await sequence.next_deltas()
            now = time.perf_counter()
            if before is not None:
                seen.gaps.append(now - before)
            before = now
            if isinstance(deltas[-1], StepEnd):
                break
        seen.num_steps += 1
        resting.append(sequence)


def furthest_from_likeliest(folder: Path, logs: deque[TokenLog]) -> float:
    """How many logits at most a sampled id is behind the likeliest one, in the model's fp32."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    furthest = 0.0
    with torch.inference_mode():
        for log in logs:
            ids = list(log.context())
            rows = network(torch.tensor([ids])).logits[0]
            for span in log.since(0):
                for place in range(span.offset, span.offset + len(span.ids) if span.sampled else 0):
                    furthest = max(furthest, float(rows[place - 1].max() - rows[place - 1, ids[place]]))
    return furthest


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.soak_local", description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--paused", type=int, default=64)
    parser.add_argument("--running", type=int, default=8)
    parser.add_argument("--max-context", type=int, default=1500, help="tokens at which a run ends")
    parser.add_argument("--kv-mib", type=int, default=768, help="the KV budget")
    parser.add_argument("--stall-s", type=float, default=3.0, help="longest wait between two parts of a step")
    parser.add_argument("--growth", type=float, default=1.05, help="largest growth of the worker")
    parser.add_argument("--dtype", default="auto", help="of the worker's weights")
    parser.add_argument("--tie", type=float, default=1.0, help="logits that this dtype may be off by")
    return parser.parse_args(argv)


async def run(args: argparse.Namespace) -> bool:
    """Soak, say what was seen, and whether that is well."""
    folder = await trio.to_thread.run_sync(resolve, args.model, lambda *_: None)
    form = PromptFormat.load(folder)
    model = LocalModel(
        folder=folder, id="soak", context_window=form.context_window, stop_ids=tuple(sorted(form.stop_ids))
    )
    seen = Soak(args.max_context)
    async with open_local_backend(
        model, partial(Prompt, form), max_kv_bytes=args.kv_mib << 20, dtype=args.dtype
    ) as backend:
        await backend.wait_ready()
        of_run = RunSpec(response_id="r", model="soak", instructions="Answer in a few words.")
        await soak(backend, of_run, args.seconds, args.paused, args.running, seen)
        load = backend.load()
    behind = furthest_from_likeliest(folder, seen.logs)
    gaps = sorted(seen.gaps)
    print(
        f"{seen.num_steps} steps; {load.tokens_reused:,} tokens reused, {load.tokens_prefilled:,} prefilled, "
        f"{load.tokens_evicted:,} evicted\n"
        f"longest wait between two parts of a step {gaps[-1]:.2f} s (p99 {gaps[int(0.99 * len(gaps))]:.3f} s)\n"
        f"worker {max(seen.resident) >> 20} MiB at most, last quarter over second {seen.growth:.3f}\n"
        f"{len(seen.logs)} logs replayed, no sampled id further than {behind:.3f} logits from the likeliest"
    )
    return gaps[-1] <= args.stall_s and seen.growth <= args.growth and behind <= args.tie


if __name__ == "__main__":
    sys.exit(0 if trio.run(run, parse_args(sys.argv[1:])) else 1)
