"""Every event of a run with functions is one that Open Responses knows, whole and without stray nulls."""

from typing import Any

import msgspec
import pytest

from engine.outgoing import EventForm
from tests.all_events import OURS, compaction_events, plain_events, plain_runs
from tests.machines import Run
from tests.open_responses import StreamEvent

FORM = EventForm(names="open_responses")


def as_open_responses(run: Run) -> list[dict[str, Any]]:
    """The run's events with the names that the setting `event_names` gives."""
    log = run.response.log
    data = [FORM.encode(log.read(seq)) for seq in range(log.next)]
    return [event for one in data if (event := msgspec.json.decode(one))["type"] not in OURS]


SEEN = [event for run in plain_runs() for event in as_open_responses(run)] + compaction_events()


@pytest.mark.parametrize("type_", sorted({event["type"] for event in SEEN}))
def test_every_event_is_open_responses(type_: str) -> None:
    for event in SEEN:
        if event["type"] == type_:
            StreamEvent.validate_python(event)


def test_under_openais_names_only_raw_reasoning_differs() -> None:
    unknown = {event["type"] for event in plain_events()} - {event["type"] for event in SEEN} - OURS
    assert unknown == {"response.reasoning_text.delta", "response.reasoning_text.done"}
    with pytest.raises(ValueError, match=r"reasoning_text\.delta"):
        StreamEvent.validate_python(next(event for event in plain_events() if event["type"] in unknown))
