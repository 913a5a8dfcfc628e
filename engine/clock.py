"""The two clocks: wall time for what people read, monotonic milliseconds for what is measured."""

import time


def wall_clock() -> float:
    """Seconds since the epoch."""
    return time.time()


def now_ms() -> float:
    """Milliseconds of a clock that never jumps; only differences mean anything."""
    return time.perf_counter_ns() / 1e6
