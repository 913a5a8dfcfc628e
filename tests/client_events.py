"""Events and frames for tests of the client's state machine."""

import json
from typing import Any

from engine.client_outbox import AnswerType
from engine.client_state import RunState
from engine.client_wire import Event

FUNCTION: AnswerType = "function_call_output"
CREATE = {"input": "go", "resumable": True}


def event(kind: str, number: int | None = None, **fields: Any) -> Event:
    numbered = {} if number is None else {"sequence_number": number}
    return Event({"type": f"response.{kind}", **numbered, **fields})


def created(number: int = 0, **fields: Any) -> Event:
    return event("created", number, response={"id": "resp_1", **fields})


def item_done(number: int, call_id: str = "c0", kind: str = "function_call", **fields: Any) -> Event:
    item = {"type": kind, "id": f"item_{number}", "call_id": call_id, **fields}
    return event("output_item.done", number, item=item)


def done(number: int, *pending: str) -> Event:
    response = {"id": "resp_1", "status": "in_progress", "pending": [{"answer_key": key} for key in pending]}
    return event("done", number, response=response)


def error(code: str | None, status: int = 400) -> Event:
    return Event({"type": "error", "status": status, "error": {"code": code, "message": "No.", "param": "p"}})


def sent(state: RunState) -> list[dict[str, Any]]:
    """The frames that it wants to send now."""
    frames = []
    while (frame := state.next_frame()) is not None:
        frames.append(json.loads(frame))
    return frames
