"""The events of runs in which everything happens that a run can say; for tests of what clients can read."""

from typing import Any

import msgspec

from engine.backends.base import CallDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from engine.content import TokenLogprob, TopLogprob
from engine.errors import ServerError
from engine.events import encode_event
from engine.log import EventLog
from engine.writer import ItemWriter
from tests.machines import NOTE, NOW, WEATHER, Run, call, counting_ids, output, stop

TOOLS = [WEATHER, NOTE, {"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
ACTIONS: list[tuple[Any, str]] = [
    ("local_shell_call", '{"command":["ls"]}'),
    ("shell_call", '{"commands":["ls","pwd"]}'),
    ("apply_patch_call", '{"type":"create_file","path":"a","diff":"+x"}'),
    ("computer_call", '{"type":"screenshot"}'),
    ("tool_search_call", '{"query":"q"}'),
]
# Ours alone, or of a beta; openai-python keeps them as dicts (facts/responses-api.md, 2.3).
OURS = {"response.done", "response.tokens", "response.inject.created"}


def plain_runs() -> list[Run]:
    """Runs with functions for tools, as every server of the API has them."""
    settings: dict[str, Any] = {"tools": [WEATHER], "metadata": {"k": "v"}, "text": {"verbosity": "low"}}
    whole = Run(**settings).step(ReasoningDelta("hm"), "Hi", " there", call('{"city":"Bern"}'))
    whole.append(output("call_0"))
    whole.response.take_new_items()
    whole.step("done")
    chosen = Run(**settings, tool_choice={"type": "function", "name": "weather"}).step("chosen")
    sealed = Run(include=["reasoning.encrypted_content"], reasoning={"effort": "low"}).step(ReasoningDelta("hm"), "Hi")
    summary = Run(include=["reasoning.encrypted_content"], reasoning={"summary": "auto"})
    summary.step(ReasoningDelta("hm"), "Hi")
    structured = Run(text={"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}).step("{}")
    cached = Run(prompt_cache_options={"mode": "explicit"}, prompt_cache_retention="24h").step("x")
    rated = Run(include=["message.output_text.logprobs"], top_logprobs=1)
    top = [TopLogprob("Hi", list(b"Hi"), -0.25)]
    rated.step(TextDelta("Hi", (TokenLogprob("Hi", list(b"Hi"), -0.25, top),)), "!")
    return [whole, rated, chosen, sealed, summary, structured, cached, *_cut_runs(), _agent_run()]


def _cut_runs() -> list[Run]:
    text = Run().step("half", end=stop("max_output_tokens"))
    function = Run(tools=[WEATHER])
    function.step([CallStart("function_call", "weather"), CallDelta("{")], end=stop("max_output_tokens"))
    summary = Run(reasoning={"summary": "detailed"}).step(ReasoningDelta("h"), end=stop("max_output_tokens"))
    failed = Run()
    failed.response.fail(ServerError("no"), NOW)
    return [text, function, summary, failed]


def _agent_run() -> Run:
    run = Run(tools=[WEATHER], lifecycle="inject").step("First I look.", call())
    run.append(output("call_0"))
    run.response.take_new_items()
    return run.step("done")


def agent_events() -> list[dict[str, Any]]:
    """The events of the inject lifecycle, which is OpenAI's multi-agent beta."""
    return _agent_run().events


def action_run() -> Run:
    """A run with calls of every other kind."""
    run = Run(tools=TOOLS).feed(call("x", name="note", kind="custom_tool_call"))
    for kind, text in ACTIONS:
        run.feed([CallStart(kind, kind.removesuffix("_call")), CallDelta(text), CallEnd()])
    run.feed([CallStart("mcp_approval_request", "f", server_label="crm"), CallDelta("{}"), CallEnd()])
    return run.step()


def compaction_events() -> list[dict[str, Any]]:
    """The events of a compaction."""
    log = EventLog(100)
    writer = ItemWriter(log, counting_ids(), lambda item: None)
    writer.start_compaction()
    writer.end_compaction("sealed")
    return [msgspec.json.decode(encode_event(log.read(seq))) for seq in range(log.next)]


def plain_events() -> list[dict[str, Any]]:
    """All events of `plain_runs`, and a compaction's."""
    return [event for run in plain_runs() for event in run.events] + compaction_events()


def all_kinds_of_events() -> list[dict[str, Any]]:
    """Everything."""
    return plain_events() + action_run().events
