"""Where a run stands, and what may end it."""

from enum import Enum
from typing import Literal

Reason = Literal[
    "superseded",
    "cancelled",
    "append_timeout",
    "idle_timeout",
    "server_shutdown",
    "connection_lost",
    "content_filter",  # of a summary; of a step it is the reason of its end
    "context_length_exceeded",
]


class Status(Enum):
    """Where a run stands."""

    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether the run can still go on."""
        return self in (Status.IN_PROGRESS, Status.PAUSED)
