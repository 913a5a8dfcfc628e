"""`code_interpreter`: the model's Python in a sandbox; files stay for the run and for those that go on from it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Protocol, Self

import msgspec

from engine.errors import RequestError
from engine.hosted.base import Definition, HostedCall, HostedResult, Listed, Tell, failed
from engine.hosted.containers import Containers
from engine.hosted.limited import Outcome
from engine.hosted.reading import read_arguments, read_fields
from engine.hosted.sandbox import Folder, Sandbox, SandboxLimits, sandbox_limits, sentence
from engine.settings import Settings
from engine.toolspec import Tool

ITEM: Final = "code_interpreter_call"
_NAME: Final = "code_interpreter"
_OUTPUTS: Final = "code_interpreter_call.outputs"
_NO_OUTPUT: Final = "(no output)"
_DESCRIPTION: Final = (
    "Run a Python program. There is no network. Files in the current folder stay for later programs, variables do not. "
    "What it prints is returned, and the value of a last expression."
)
_PARAMETERS: Final = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "the whole program"}},
    "required": ["code"],
    "additionalProperties": False,
}


class _Auto(msgspec.Struct, frozen=True):
    type: Literal["auto"]
    file_ids: list[str] = []
    memory_limit: str | None = None
    network_policy: dict[str, Any] | None = None


class _Fields(msgspec.Struct, frozen=True):
    container: str | _Auto


class _Arguments(msgspec.Struct, frozen=True):
    code: str


class RunsCode(Protocol):
    """A Sandbox, or a test's."""

    async def run(self, code: str, folder: Folder) -> Outcome:
        """Run a program to its end."""


class CodeInterpreterHost:
    """See the module. Made by `CodeInterpreterHost.start`."""

    def __init__(self, sandbox: RunsCode, limits: SandboxLimits, containers: Containers) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._containers = containers

    @classmethod
    @asynccontextmanager
    async def start(cls, settings: Settings) -> AsyncIterator[Self]:
        """A host for the server's life. Raises SandboxMissing where nothing can be run."""
        limits = sandbox_limits(settings)
        sandbox = Sandbox(limits, settings.code_interpreter_python, settings.max_code_programs)
        async with Containers.open(settings.code_idle_s, settings.max_code_folders) as containers:
            await sandbox.try_out(containers.parent)
            yield cls(sandbox, limits, containers)

    async def open(self, definition: Definition, include: frozenset[str], known: Sequence[Tool]) -> "CodeOfRun":
        """See base.Host. Goes on in the folder of the run before, while there is one."""
        container = read_fields(definition, _Fields).container
        if isinstance(container, str):
            if container not in self._containers:
                raise RequestError(
                    f"Container '{container}' not found; it may have expired.", param="container", status=404
                )
            return CodeOfRun(self, container, _OUTPUTS in include)
        _refuse_what_is_not_here(container)
        before = [tool.item_fields["container_id"] for tool in known if tool.hosted == ITEM]
        kept = next((id_ for id_ in before if id_ in self._containers), None)
        return CodeOfRun(self, kept or await self._containers.new(), _OUTPUTS in include)

    async def run(self, code: str, container_id: str) -> tuple[str, str | None]:
        """What a program put out, and what went wrong."""
        with self._containers.use(container_id) as folder:
            outcome = await self._sandbox.run(code, folder)
        return outcome.output.decode(errors="replace"), sentence(outcome, self._limits)


class CodeOfRun:
    """One definition's tool."""

    listed: Listed | None = None

    def __init__(self, host: CodeInterpreterHost, container_id: str, shows_outputs: bool) -> None:
        fields = {"container_id": container_id}
        self.tools = [Tool("function", _NAME, _DESCRIPTION, _PARAMETERS, hosted=ITEM, item_fields=fields)]
        self._host = host
        self._container_id = container_id
        self._shows_outputs = shows_outputs

    async def call(self, call: HostedCall, tell: Tell) -> HostedResult:
        """See base.HostedTool."""
        arguments = read_arguments(call, _Arguments)
        try:
            output, fault = await self._host.run(arguments.code, self._container_id)
        except KeyError:
            return failed("The files of this run have expired. Start a new one.")
        fields = {"outputs": [{"type": "logs", "logs": output}] if output else []} if self._shows_outputs else {}
        told = "\n".join(part for part in (output.rstrip("\n"), fault) if part)
        return HostedResult(told or _NO_OUTPUT, fault, fields)


def _refuse_what_is_not_here(container: _Auto) -> None:
    if container.file_ids:
        raise RequestError("This server has no files of its own to put into a container.", param="container.file_ids")
    if container.network_policy not in (None, {"type": "disabled"}):
        raise RequestError("Code has no network here.", param="container.network_policy")
