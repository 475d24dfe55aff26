"""What a function does, as text that can be compared: its code, and the constants and functions it refers to."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any

from headwater.pipelines.pipeline import Pipeline

__all__ = ["code_facts", "source_of"]

_SCALARS = (bool, int, float, str, bytes, Decimal, date, timedelta, type(None))


def source_of(function: Any) -> str:
    """The function's text from its first decorator on, without the indentation it has in the file; or nothing."""
    try:
        return dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def code_facts(function: Any, source: str) -> dict[str, str]:
    r"""The function's code as `code`, and what it refers to in the user's files as `uses.NAME`.

    Comments, layout, docstrings, annotations and decorators change nothing. Constants count when they are numbers,
    text, times or collections of these; functions count when they stand in the same folder. Anything else does not.

    Example:
        >>> LIMIT = 100
        >>> def big(orders):
        ...     return orders > LIMIT
        >>> code_facts(big, "def big(orders):  # large ones\n    return (orders > LIMIT)")
        {'code': 'def big(orders):\n    return orders > LIMIT', 'uses.LIMIT': '100'}
    """
    facts = {"code": _normal(function, source)}
    seen = {id(inspect.unwrap(function))}
    waiting = [inspect.unwrap(function)]
    while waiting:
        current = waiting.pop()
        for name, value in _referred(current):
            constant = _constant(value)
            if constant is not None:
                facts[f"uses.{name}"] = constant
            elif (called := _own_function(value, current)) and id(called) not in seen:
                seen.add(id(called))
                facts[f"uses.{name}"] = _normal(called, source_of(called))
                waiting.append(called)
    return facts


def _normal(function: Any, source: str) -> str:
    """The code without all that changes nothing; the compiled form when its text is not known."""
    try:
        tree = ast.parse(source).body
    except SyntaxError:
        tree = []
    if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef):
        code = getattr(inspect.unwrap(function), "__code__", None)
        return "" if code is None else " ".join(_compiled(code))
    for node in ast.walk(tree[0]):
        if isinstance(node, ast.FunctionDef):
            _strip(node)
    return ast.unparse(tree[0])


def _strip(node: ast.FunctionDef) -> None:
    node.decorator_list, node.returns = [], None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]


def _compiled(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _compiled(constant)
        else:
            yield repr(constant)


def _referred(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the function's names stand for: globals, variables of enclosing functions, defaults."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    space = function.__globals__
    yield from ((name, space[name]) for name in sorted(set(_names(code))) if name in space)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            yield parameter.name, parameter.default


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _constant(value: Any) -> str | None:
    """A constant as text that is the same in every process; None for anything else."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, set | frozenset):
        members = [_constant(member) for member in value]
        return None if None in members else f"{{{', '.join(sorted(map(str, members)))}}}"
    if isinstance(value, tuple | list):
        members = [_constant(member) for member in value]
        return None if None in members else f"({', '.join(map(str, members))})"
    if isinstance(value, dict):
        return _constant(tuple(value.items()))
    return None


def _own_function(value: Any, caller: FunctionType) -> FunctionType | None:
    """The function behind a name, if it stands in the folder of the one that calls it."""
    try:
        function: Any = inspect.unwrap(value.function or value if isinstance(value, Pipeline) else value)
    except ValueError:  # a wrapper that wraps itself
        return None
    if not isinstance(function, FunctionType):
        return None
    return function if _folder(function) == _folder(caller) else None


def _folder(function: FunctionType) -> str:
    return os.path.dirname(function.__code__.co_filename)
