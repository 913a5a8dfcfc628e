"""Runs in the sandbox, alone: reads a program from standard input, runs it, shows what its last expression gives.

Given to the interpreter as text (`-c`), so it may import from the standard library only.
"""

import ast
import linecache
import sys
import traceback
from typing import Any

NAME = "<cell>"


def run_cell(code: str, names: dict[str, Any]) -> None:
    """Run a program. Raises what it raises."""
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)  # tracebacks show its lines
    tree = ast.parse(code, NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NAME, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), NAME, "eval"), names)
        if value is not None:
            print(repr(value))


def main() -> None:
    """Exit status 1 tells of an exception, whose traceback begins where the program does."""
    try:
        run_cell(sys.stdin.buffer.read().decode(), {"__name__": "__main__"})
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
