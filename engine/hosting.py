"""The hosted tools of a run that is about to start: opened, and put among the tools that its model is offered."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.answers import Batch, OpenCall
from engine.errors import RequestError
from engine.hosted.base import HostedTool
from engine.hosted.toolbox import Toolbox
from engine.items import Hosted, McpApprovalRequest, McpApprovalResponse
from engine.live import Live
from engine.opening import Before
from engine.request import RunRequest
from engine.response import NUM_OPENING, Response
from engine.tool_choice import decode_tool_choice
from engine.toolspec import Tool, refuse_duplicates


@dataclass(frozen=True)
class Hosting:
    """What a run has of hosted tools."""

    tools: Sequence[HostedTool] = ()


NO_HOSTING = Hosting()


async def open_hosting(
    toolbox: Toolbox | None, request: RunRequest, before: Before | None
) -> tuple[RunRequest, Hosting]:
    """The request with what its hosted tools offer, and without their definitions. Raises RequestError."""
    if not request.hosted:
        return request, NO_HOSTING if toolbox is None else await _as_before(toolbox, request, before)
    if toolbox is None:
        return msgspec.structs.replace(request, hosted=[]), NO_HOSTING
    opened = await toolbox.open(request.hosted, request.include, _known(request, before))
    tools = [*request.tools, *(tool for one in opened for tool in one.tools)]
    refuse_duplicates(tools)
    raw = request.echo.tool_choice
    choice = decode_tool_choice(raw if isinstance(raw, msgspec.Raw) else msgspec.Raw(b"null"), tools)
    return msgspec.structs.replace(request, hosted=[], tools=tools, tool_choice=choice), Hosting(opened)


async def _as_before(toolbox: Toolbox, request: RunRequest, before: Before | None) -> Hosting:
    """The hosted tools of a run that goes on with another one's settings."""
    if before is None or not _has_hosted(request):
        return NO_HOSTING
    if before.live is not None and before.live.hosted is not None:
        return Hosting(before.live.hosted.tools)
    return await reopen_hosting(toolbox, before.response)


def _known(request: RunRequest, before: Before | None) -> list[Tool]:
    """The hosted tools of the run before, if the same are asked for: nobody need list them again."""
    if before is None:
        return []
    earlier = before.response.request
    is_same = msgspec.json.encode(earlier.echo.tools) == msgspec.json.encode(request.echo.tools)
    return [tool for tool in earlier.tools if tool.hosted] if is_same else []


async def reopen_hosting(toolbox: Toolbox | None, response: Response) -> Hosting:
    """The hosted tools of a run that is read back. What its client's secrets had opened is closed now."""
    if toolbox is None or not _has_hosted(response.request):
        return NO_HOSTING
    tools = [tool for tool in response.request.tools if tool.hosted]
    definitions = toolbox.definitions_of(response.request.echo.tools)
    try:
        return Hosting(await toolbox.open(definitions, response.request.include, tools))
    except RequestError:  # the settings have changed: its calls fail, which the model is told
        return NO_HOSTING


def _has_hosted(request: RunRequest) -> bool:
    return any(tool.hosted for tool in request.tools)


def begin_hosting(toolbox: Toolbox | None, live: Live, hosting: Hosting) -> None:
    """Give a run what runs its hosted calls; one that starts shows what its tools show first."""
    if toolbox is None or (not _has_hosted(live.response.request) and not hosting.tools):
        return
    live.hosted = toolbox.runner(live.response, hosting.tools)
    if live.response.log.next == NUM_OPENING:
        for tool in hosting.tools:
            if tool.listed is not None:
                live.response.hosted.add_listed(tool.listed)


def has_approvals(batch: Batch) -> bool:
    """Whether the client decides on calls."""
    return any(isinstance(answer, McpApprovalResponse) for answer in batch.answers.values())


def approvals_in(request: RunRequest, before: Before | None) -> list[OpenCall]:
    """The calls of ours that the input decides on: of the run before, or of a history that has them without a call."""
    hosted = {(tool.namespace, tool.name) for tool in request.tools if tool.hosted}
    if not hosted:
        return []
    made = {item.data.get("approval_request_id") for item in request.items if isinstance(item, Hosted)}
    asked = {item.id: item for item in request.items if isinstance(item, McpApprovalRequest)}
    if before is not None:
        calls = (entry.call for entry in before.response.answers.open.values())
        asked |= {call.id: call for call in calls if isinstance(call, McpApprovalRequest)}
    answers = (item for item in request.items if isinstance(item, McpApprovalResponse))
    decided = ((asked.get(answer.approval_request_id), answer) for answer in answers)
    return [
        OpenCall(call, answer, is_hosted=True)
        for call, answer in decided
        if call is not None and (call.server_label, call.name) in hosted and call.id not in made
    ]
