"""Calls whose item holds an action instead of arguments: from the model's JSON to the item."""

from typing import Any, Final

import msgspec

from engine.backends.base import CallStart
from engine.errors import BackendError
from engine.items import (
    ApplyPatchCall,
    Call,
    ComputerCall,
    LocalShellCall,
    McpApprovalRequest,
    ShellCall,
    ToolSearchCall,
)

PREFIXES: Final = {
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "apply_patch_call": "apc",
    "computer_call": "cu",
    "tool_search_call": "tsc",
    "mcp_approval_request": "mcpr",
}


# What the items' fields need, as strict clients read them; further keys pass.
class _Exec(msgspec.Struct):
    command: list[str]
    env: dict[str, str] = {}


class _Commands(msgspec.Struct):
    commands: list[str]


class _CreateFile(msgspec.Struct, tag_field="type", tag="create_file"):
    path: str
    diff: str


class _UpdateFile(msgspec.Struct, tag_field="type", tag="update_file"):
    path: str
    diff: str


class _DeleteFile(msgspec.Struct, tag_field="type", tag="delete_file"):
    path: str


class _Action(msgspec.Struct):
    type: str


_NEEDED: Final[dict[str, Any]] = {
    "local_shell_call": _Exec,
    "shell_call": _Commands,
    "apply_patch_call": _CreateFile | _UpdateFile | _DeleteFile,
    "computer_call": _Action,
    "tool_search_call": dict[str, Any],
}


def build_call(start: CallStart, text: str, *, item_id: str, call_id: str) -> Call:
    """The call item of a kind that does not stream. `text` is the model's JSON for it.

    Raises BackendError when that is not the JSON object this kind needs: there is no item that could carry it.
    """
    if start.type == "mcp_approval_request":
        return McpApprovalRequest(
            id=item_id, name=start.name, arguments=text or "{}", server_label=start.server_label or ""
        )
    try:
        value = msgspec.json.decode(text or "{}", type=dict[str, Any])
        if start.type in _NEEDED:
            msgspec.convert(value, _NEEDED[start.type])
    except msgspec.DecodeError as error:
        raise BackendError(f"The model made a malformed {start.type}.", code="model_error") from error
    match start.type:
        case "local_shell_call":
            action = {"env": {}} | value | {"type": "exec"}
            return LocalShellCall(id=item_id, call_id=call_id, action=action, status="completed")
        case "shell_call":
            return ShellCall(id=item_id, call_id=call_id, action=value, status="completed")
        case "apply_patch_call":
            return ApplyPatchCall(id=item_id, call_id=call_id, operation=value, status="completed")
        case "computer_call":
            return ComputerCall(id=item_id, call_id=call_id, action=value, status="completed")
        case "tool_search_call":
            return ToolSearchCall(id=item_id, call_id=call_id, arguments=value, execution="client", status="completed")
        case other:
            raise ValueError(f"{other} streams")
