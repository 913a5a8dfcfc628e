"""Tools from a Python file: what it lists in `tools`, else every public function it defines, as such or as a tool."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from engine.customtool import CustomTool
from engine.toolcall import ToolFunction
from engine.toolschema import FunctionTool, as_tool


class ToolFileError(Exception):
    """The file cannot be loaded or holds no tools; the message says which and why."""


def load_tools(path: Path) -> list[FunctionTool | CustomTool]:
    """The tools of a file, in the order it lists or defines them. Runs the file. Raises ToolFileError."""
    return _tools_of(_load(path), str(path))


def load_named(name: str) -> list[FunctionTool | CustomTool]:
    """The tools of a file (`tools.py`) or of an installed module (`company.tools`). Raises ToolFileError."""
    if name.endswith(".py"):
        return load_tools(Path(name))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ToolFileError(f"{name}: {type(error).__name__}: {error}") from error
    return _tools_of(module, name)


def _tools_of(module: ModuleType, source: str) -> list[FunctionTool | CustomTool]:
    listed = getattr(module, "tools", None)
    functions = listed if listed is not None else _public_functions(module)
    try:
        tools = [as_tool(function) for function in functions]
    except (TypeError, NameError, AttributeError) as error:
        raise ToolFileError(f"{source}: {error}") from error
    if not tools:
        raise ToolFileError(f"{source} defines no public function")
    return tools


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ToolFileError(f"there is no file {path}")
    # The path is part of the name, since two files may both be called tools.py.
    name = f"longloop_tools_{path.stem}_{abs(hash(path.resolve())):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ToolFileError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered, because dataclasses and type hints look their module up.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ToolFileError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _public_functions(module: ModuleType) -> list[ToolFunction | FunctionTool | CustomTool]:
    return [value for name, value in vars(module).items() if not name.startswith("_") and _is_own(value, module)]


def _is_own(value: object, module: ModuleType) -> bool:
    function = value.function if isinstance(value, FunctionTool | CustomTool) else value
    return inspect.isfunction(function) and function.__module__ == module.__name__
