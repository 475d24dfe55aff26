"""A user's function, looked at but not run: its inputs, its first line of documentation, its place in the file."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

from headwater.errors import BadPipelineError, Place
from headwater.pipelines.pipeline import Pipeline

__all__ = ["check_function", "doc_of", "inputs_of", "place_of", "tables_in"]


def check_function(function: Any, *, noun: str, place: Place | None) -> None:
    """Refuse what can never be run as a pipeline.

    Raises:
        BadPipelineError: It is no function, or one that is called in another way.
    """
    fix = "def name(orders: DataFrame) -> DataFrame: …"
    if isinstance(function, Pipeline):
        what = f'{function} cannot be a {noun} as well: "{function.name}" is one name'
        raise BadPipelineError(what, fix="write a second function that calls the first", place=place)
    if not callable(function) or inspect.isclass(function):
        what = f"a {noun} is made from a function, not from {_described(function)}"
        raise BadPipelineError(what, fix=fix, place=place)
    if getattr(function, "__name__", "") == "<lambda>":
        raise BadPipelineError(f"a {noun} cannot be a lambda: it has no name", fix=fix, place=place)
    name = getattr(function, "__name__", noun)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what = f'{noun} "{name}" is an async function'
        detail = "it describes what Spark should do and is called once; there is nothing to wait for"
        raise BadPipelineError(what, detail=detail, fix=f"def {name}(…)", place=place)
    if inspect.isgeneratorfunction(function):
        what = f'{noun} "{name}" yields, and must return one DataFrame'
        raise BadPipelineError(what, fix="return …", place=place)


def inputs_of(function: Any, *, name: str, place: Place | None) -> tuple[str, ...]:
    """The names of the function's parameters; those with a default are settings of the function itself.

    Example:
        >>> def late_payments(orders, payments, *, limit=3): ...
        >>> inputs_of(late_payments, name="late_payments", place=None)
        ('orders', 'payments')
    """
    refused = {
        inspect.Parameter.VAR_POSITIONAL: "*{}",
        inspect.Parameter.VAR_KEYWORD: "**{}",
        inspect.Parameter.POSITIONAL_ONLY: "{} before a /",
    }
    inputs: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in refused:
            shown = refused[parameter.kind].format(parameter.name)
            what = f'"{name}" has a parameter {shown}, which names no input'
            detail = "each parameter is the name of one topic, table, stream or view"
            fix = f"def {name}(orders: DataFrame)"
            raise BadPipelineError(what, detail=detail, fix=fix, place=place, parameter=parameter.name)
        if parameter.default is parameter.empty:
            inputs.append(parameter.name)
    if not inputs:
        what = f'"{name}" has no parameters, so there is nothing to read'
        detail = "each parameter is the name of one topic, table, stream or view"
        raise BadPipelineError(what, detail=detail, fix=f"def {name}(orders: DataFrame)", place=place)
    return tuple(inputs)


def tables_in(function: Any) -> tuple[str, ...]:
    """The parameters that are annotated as tables, whether the annotation is the class or its name.

    Example:
        >>> def priced(orders: "DataFrame", products: "hw.Table"): ...
        >>> tables_in(priced)
        ('products',)
    """
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if _named(parameter.annotation) == "Table")


def _named(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.strip("'\"").rpartition(".")[2]


def doc_of(function: Any) -> str:
    """The first line of the function's docstring, or nothing.

    Example:
        >>> doc_of(doc_of)
        "The first line of the function's docstring, or nothing."
    """
    if inspect.isroutine(function):
        return next(iter((inspect.getdoc(function) or "").splitlines()), "")
    return ""  # an object's docstring is that of its class


def place_of(function: Any) -> Place | None:
    """The line with the function's `def`, below its decorators; None where there is none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    first = code.co_firstlineno
    for line in range(first, first + 50):
        text = linecache.getline(code.co_filename, line).strip()
        if text.startswith(("def ", "async def ")):
            return Place.near(code.co_filename, line, text)
    return Place.near(code.co_filename, first, linecache.getline(code.co_filename, first).strip())


def _described(thing: object) -> str:
    if inspect.isclass(thing):
        return f"the class {thing.__name__}"
    return f"{thing!r:.40}"
