"""A tool definition of `type: "mcp"`: a remote MCP server by its URL, or functions of this server by their label.

`headers` and `authorization` are secrets of the client's. They stay in the memory of the run that came with them:
nothing here shows or encodes them, and the response shows the definition without (echo.py).
"""

from typing import Annotated, Any, Literal

import msgspec

from engine.hosted.base import Definition
from engine.json_input import invalid_json


class ToolFilter(msgspec.Struct, frozen=True):
    """Some of a server's tools. read_only: those that say of themselves that they change nothing."""

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def has(self, name: str, *, is_read_only: bool) -> bool:
        """Whether a tool is one of them."""
        is_named = self.tool_names is None or name in self.tool_names
        return is_named and (not self.read_only or is_read_only)


class Approval(msgspec.Struct, frozen=True):
    """Which tools need the client's approval always, and which never."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpDefinition(msgspec.Struct, frozen=True):
    """See the module. `require_approval` None: as the host has it."""

    server_label: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    server_url: str | None = None
    server_description: str | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | Approval | None = None

    def __repr__(self) -> str:
        return f"McpDefinition({self.server_label!r})"

    def allows(self, name: str, *, is_read_only: bool = False) -> bool:
        """Whether the model may be offered this tool."""
        if isinstance(self.allowed_tools, ToolFilter):
            return self.allowed_tools.has(name, is_read_only=is_read_only)
        return self.allowed_tools is None or name in self.allowed_tools

    def needs_approval(self, name: str, *, by_default: bool, is_read_only: bool = False) -> bool:
        """Whether the client is asked before this tool is called."""
        match self.require_approval:
            case "always" | "never" as choice:
                return choice == "always"
            case Approval(always=always, never=never):
                if never is not None and never.has(name, is_read_only=is_read_only):
                    return False
                return by_default or (always is not None and always.has(name, is_read_only=is_read_only))
            case _:
                return by_default


def read_definition(definition: Definition) -> McpDefinition:
    """The definition checked. Raises RequestError with a path inside it."""
    try:
        return msgspec.convert(definition.fields, McpDefinition)
    except msgspec.ValidationError as error:
        raise invalid_json(error) from error


SECRETS = ("headers", "authorization")


def without_secrets(fields: dict[str, Any]) -> dict[str, Any]:
    """The definition as it may be shown and kept. A URL loses what may be a key: user, password, query."""
    bare = {name: value for name, value in fields.items() if name not in SECRETS}
    url = bare.get("server_url")
    if isinstance(url, str):
        head, sign, rest = url.partition("?")[0].partition("//")
        host, slash, path = rest.partition("/")
        bare["server_url"] = head + sign + host.rpartition("@")[2] + slash + path.partition("#")[0]
    return bare
