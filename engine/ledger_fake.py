"""A ledger without a disk, for tests: keeps its records in a list, and is as durable as it is told to be."""

from collections.abc import Mapping

import trio

from engine.bill import RunBill
from engine.budget import Budget, Limits
from engine.ledger import Bill, Record, Segment, Started, to_ms


class MemoryLedger:
    """See Ledger. `durable`: clear it, and who waits for the disk waits."""

    def __init__(self, limits: Limits | None = None, used: Mapping[str, int] | None = None) -> None:
        """used: by principal, before."""
        self.records: list[Record] = []
        self.durable = trio.Event()
        self.durable.set()
        self.failure: str | None = None
        self._budget = Budget(limits or Limits(0, 0), used or {}, 0.0)

    @property
    def segments(self) -> list[Segment]:
        """The records of segments."""
        return [record for record in self.records if isinstance(record, Segment)]

    def check(self, principal: str, now: float) -> None:
        self._budget.check(principal, 1, now)

    def open_bill(
        self, response_id: str, principal: str, model: str, num_tokens: int, now: float, first_segment: int = 0
    ) -> Bill:
        run = Started(response_id, principal, model, to_ms(now), num_tokens)
        return RunBill(run, self._budget, self.records.append, first_segment)

    async def next_segment(self, response_id: str) -> int:
        return max((one.segment + 1 for one in self.segments if one.response_id == response_id), default=0)

    async def wait_durable(self) -> None:
        await self.durable.wait()
