"""Inspects a user's function without running it.

`inputs_of`, `table_inputs`, `doc_of` and `location_of` read its parameters, docstring and source location. `code_facts`
returns its code as comparable text, with the constants and functions it refers to; a change of this text means that the
pipeline has changed.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any

from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines.pipeline import Pipeline

__all__ = ["check_function", "code_facts", "doc_of", "inputs_of", "location_of", "source_of", "table_inputs"]

_SCALARS = (bool, int, float, str, bytes, Decimal, date, timedelta, type(None))


def source_of(function: Any) -> str:
    """Returns the function's source from its first decorator on, dedented; empty if unknown."""
    try:
        return dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def code_facts(function: Any, source: str) -> dict[str, str]:
    r"""Returns the function's code as `code`, and what it refers to in the user's files as `uses.NAME`.

    Comments, layout, docstrings, annotations and decorators have no effect. References are followed to constants
    (numbers, text, times and collections of these) and to functions in files of the same folder, not to anything else.

    Example:
        >>> LIMIT = 100
        >>> def big(orders):
        ...     return orders > LIMIT
        >>> code_facts(big, "def big(orders):  # large ones\n    return (orders > LIMIT)")
        {'code': 'def big(orders):\n    return orders > LIMIT', 'uses.LIMIT': '100'}
    """
    facts = {"code": _normalize(function, source)}
    visited = {id(inspect.unwrap(function))}
    waiting = [inspect.unwrap(function)]  # functions that refer to each other are visited once
    while waiting:
        current = waiting.pop()
        for name, value in _references(current):
            constant = _constant_text(value)
            if constant is not None:
                facts[f"uses.{name}"] = constant
            elif (function_used := _user_function(value, current)) and id(function_used) not in visited:
                visited.add(id(function_used))
                facts[f"uses.{name}"] = _normalize(function_used, source_of(function_used))
                waiting.append(function_used)
    return facts


def _normalize(function: Any, source: str) -> str:
    """Returns the code without the parts that have no effect; the bytecode if the source is unknown."""
    try:
        tree = ast.parse(source).body
    except SyntaxError:
        tree = []
    if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef):
        code = getattr(inspect.unwrap(function), "__code__", None)
        return "" if code is None else " ".join(_bytecode_parts(code))
    for node in ast.walk(tree[0]):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree[0])


def _bytecode_parts(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _bytecode_parts(constant)
        else:
            yield repr(constant)


def _references(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the names that a function refers to, with their values: globals, closure variables and defaults."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    namespace = function.__globals__
    yield from ((name, namespace[name]) for name in sorted(set(_global_names(code))) if name in namespace)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            yield parameter.name, parameter.default


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _constant_text(value: Any) -> str | None:
    """Returns a constant as text that is the same in every process; None for anything else."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, dict):
        return _constant_text(tuple(value.items()))
    if not isinstance(value, set | frozenset | tuple | list):
        return None
    members = [_constant_text(member) for member in value]
    if None in members:
        return None
    texts = list(map(str, members))
    return f"({', '.join(texts)})" if isinstance(value, tuple | list) else f"{{{', '.join(sorted(texts))}}}"


def _user_function(value: Any, caller: FunctionType) -> FunctionType | None:
    """Returns the function behind a name, if it is defined in the folder of the caller."""
    try:
        function: Any = inspect.unwrap(value.function or value if isinstance(value, Pipeline) else value)
    except ValueError:  # a wrapper that wraps itself
        return None
    if not isinstance(function, FunctionType):
        return None
    folder, other = (os.path.dirname(each.__code__.co_filename) for each in (function, caller))
    return function if folder == other else None


def check_function(function: Any, *, noun: str, location: SourceLocation | None) -> None:
    """Refuse a callable that can never run as a pipeline.

    Raises:
        BadPipelineError: It is not a function, or it is a lambda, a coroutine or a generator.
    """
    fix = "def name(orders: DataFrame) -> DataFrame: …"
    if isinstance(function, Pipeline):
        what = f'{function} cannot be a {noun} as well: the name "{function.name}" is taken'
        raise BadPipelineError(what, fix="write a second function that calls the first", location=location)
    if not callable(function) or inspect.isclass(function):
        given = f"the class {function.__name__}" if inspect.isclass(function) else f"{function!r:.40}"
        raise BadPipelineError(f"a {noun} needs a function, not {given}", fix=fix, location=location)
    if getattr(function, "__name__", "") == "<lambda>":
        raise BadPipelineError(f"a {noun} cannot be a lambda: it has no name", fix=fix, location=location)
    name = getattr(function, "__name__", noun)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what = f'{noun} "{name}" is an async function'
        detail = "it is called once, to describe what Spark should do"
        raise BadPipelineError(what, detail=detail, fix=f"def {name}(…)", location=location)
    if inspect.isgeneratorfunction(function):
        what = f'{noun} "{name}" is a generator, and must return one DataFrame'
        raise BadPipelineError(what, fix="return …", location=location)


def inputs_of(function: Any, *, name: str, location: SourceLocation | None) -> tuple[str, ...]:
    """Returns the names of the function's inputs: its parameters without a default value.

    Example:
        >>> def late_payments(orders, payments, *, limit=3): ...
        >>> inputs_of(late_payments, name="late_payments", location=None)
        ('orders', 'payments')
    """
    refused = {
        inspect.Parameter.VAR_POSITIONAL: "*{}",
        inspect.Parameter.VAR_KEYWORD: "**{}",
        inspect.Parameter.POSITIONAL_ONLY: "{} before a /",
    }
    detail = "each parameter is the name of one topic, table, stream or view"
    fix = f"def {name}(orders: DataFrame)"
    inputs: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in refused:
            what = f'"{name}" has a parameter {refused[parameter.kind].format(parameter.name)}, which names no input'
            raise BadPipelineError(what, detail=detail, fix=fix, location=location, parameter=parameter.name)
        if parameter.default is parameter.empty:
            inputs.append(parameter.name)
    if not inputs:
        what = f'"{name}" has no parameters, so it reads nothing'
        raise BadPipelineError(what, detail=detail, fix=fix, location=location)
    return tuple(inputs)


def table_inputs(function: Any) -> tuple[str, ...]:
    """Returns the parameters annotated as tables, by class or by name.

    Example:
        >>> def priced(orders: "DataFrame", products: "hw.Table"): ...
        >>> table_inputs(priced)
        ('products',)
    """
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if _annotation_name(parameter.annotation) == "Table")


def _annotation_name(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.strip("'\"").rpartition(".")[2]


def doc_of(function: Any) -> str:
    """Returns the first line of the function's docstring, or an empty text.

    Example:
        >>> doc_of(doc_of)
        "Returns the first line of the function's docstring, or an empty text."
    """
    if inspect.isroutine(function):
        return next(iter((inspect.getdoc(function) or "").splitlines()), "")
    return ""  # an object's docstring is that of its class


def location_of(function: Any) -> SourceLocation | None:
    """Returns the line of the function's `def`, below its decorators; None if unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    first = code.co_firstlineno
    for line in range(first, first + 50):  # decorators of more lines are not expected
        text = linecache.getline(code.co_filename, line).strip()
        if text.startswith(("def ", "async def ")):
            return SourceLocation.at(code.co_filename, line, text)
    return SourceLocation.at(code.co_filename, first, linecache.getline(code.co_filename, first).strip())
