"""The hosted calls of one run: which of the model's calls they are, how many may run, what came of them.

    called ──────────────▶ to run ── the tool ran ──▶ settled, and given to the model with the next step
    called, needs approval ─▶ asks the client ── approved ──▶ to run        ── denied ──▶ settled
    called, one too many ───▶ settled

The model learns of a denied call, and of one that is beyond `max_tool_calls`, by its output. After that limit the
model is offered the client's tools alone; should it go on calling hosted ones, its second step of nothing else ends
the run, or that would never end.
"""

from typing import Final

from engine.answers import Answers
from engine.backends.base import CallStart, ToolChoice
from engine.hosted.base import HostedCall, HostedResult, Listed, Sketch, failed
from engine.hosted_writer import HostedWriter, in_context
from engine.items import (
    Answer,
    Call,
    FunctionCallOutput,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    answer_key,
)
from engine.progress import Progress
from engine.toolspec import Tool

_DENIED: Final = "The user did not approve this call, so it was not made."


class HostedCalls:
    """See the module. `tools`: all of the run's; limit: hosted calls of the whole run."""

    __slots__ = ("_answers", "_limit", "_offered", "_refused", "_to_run", "_tools", "_writer")  # one for every run

    def __init__(self, tools: list[Tool], writer: HostedWriter, answers: Answers, limit: int) -> None:
        self._writer = writer
        self._answers = answers
        self._offered = tools
        self._tools = {(tool.namespace, tool.name): tool for tool in tools if tool.hosted}
        self._limit = limit
        self._to_run: list[HostedCall] = []
        self._refused: list[str] = []  # of this step

    def tool_of(self, start: CallStart) -> Tool | None:
        """The hosted tool that the model calls; None for a client's."""
        return self._tools.get((start.namespace, start.name)) if start.type == "function_call" else None

    def is_to_be_approved(self, call: Call) -> bool:
        """Whether the client's answer decides on a call of ours."""
        return isinstance(call, McpApprovalRequest) and (call.server_label, call.name) in self._tools

    def choice(self, choice: ToolChoice, progress: Progress) -> ToolChoice:
        """The step's choice without hosted tools, once there may be no more calls of them."""
        if progress.num_hosted_calls < self._limit or not self._tools:
            return choice
        clients = frozenset(_label(tool) for tool in self._offered if not tool.hosted)
        allowed = clients if choice.allowed is None else clients & choice.allowed
        return ToolChoice(choice.mode, allowed) if allowed else ToolChoice("none")

    # --- a call's way ---

    def end_call(self, progress: Progress) -> None:
        """The call that the model writes is whole."""
        call = self._writer.end_call()
        self._answers.called(in_context(call), is_hosted=True)
        self._run_or_refuse(call, progress)

    def begin_approved(self, progress: Progress) -> None:
        """What the client has decided on since: approved calls are announced and to be run, denied ones settled."""
        for key, entry in self._answers.open.items():
            request, answer = entry.call, entry.answer
            is_new = entry.is_hosted and entry.output is None and isinstance(answer, McpApprovalResponse)
            if not is_new or not isinstance(request, McpApprovalRequest) or key in self._begun_approvals():
                continue
            assert isinstance(answer, McpApprovalResponse)
            if answer.approve:
                tool = self._tools[request.server_label, request.name]
                self._run_or_refuse(self._writer.add_approved(tool, request.arguments, key), progress)
            else:
                why = f"{_DENIED} {answer.reason}" if answer.reason else _DENIED
                self._answers.settle(FunctionCallOutput(call_id=key, output=why))

    def take_to_run(self) -> list[HostedCall]:
        """The calls that are to be run now."""
        calls, self._to_run = self._to_run, []
        return calls

    def finish(self, call: HostedCall, result: HostedResult) -> None:
        """A call has run."""
        self._writer.finish(call, result)
        self._answers.settle(FunctionCallOutput(call_id=call.call_id, output=result.output))

    def add_listed(self, listed: Listed) -> None:
        """Show what a tool shows first."""
        self._writer.add_listed(listed)

    def tell(self, call: HostedCall, sketch: Sketch) -> None:
        """Log how a call comes on."""
        self._writer.tell(call, sketch)

    def gives_up(self, progress: Progress) -> bool:
        """Asked once at a step's end: whether the model goes on calling what it may not, and does nothing else."""
        if not self._refused:
            return False
        refused, self._refused = set(self._refused), []
        was_told, progress.is_told_of_limit = progress.is_told_of_limit, True
        return was_told and refused == self._answers.open.keys()

    # --- inside ---

    def _begun_approvals(self) -> set[str]:
        return {call.approval_request_id or "" for call in self._writer.under_way}

    def _run_or_refuse(self, call: HostedCall, progress: Progress) -> None:
        progress.num_hosted_calls += 1
        if progress.num_hosted_calls <= self._limit:
            self._to_run.append(call)
            return
        self._refused.append(call.call_id)
        self.finish(call, failed(f"Not run: a response may make {self._limit} calls of hosted tools. Go on without."))


def _label(tool: Tool) -> str:
    return f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name


def in_place(items: list[Item], outputs: list[Answer]) -> list[Item]:
    """The items with the outputs of approved calls in the place of the approvals."""
    by_key = {answer_key(output): output for output in outputs}
    return [
        by_key.get(item.approval_request_id, item) if isinstance(item, McpApprovalResponse) else item for item in items
    ]
