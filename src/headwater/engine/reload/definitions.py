"""What the result of a pipeline depends on in the user's files, to tell which pipelines an edit concerns.

`Pipeline.facts` decides whether stored state fits, so it names constants and functions only. Here every statement
counts that a function can reach by name: classes, imports and calls at the top of a file, too. Nothing is run for that.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from headwater.app import App
from headwater.app_file import user_modules
from headwater.log import Topic
from headwater.pipelines import Graph, Pipeline
from headwater.queues import DeclaredQueue

__all__ = ["digest_pipelines"]

_DECLARATIONS: Final = (App, Topic, DeclaredQueue)
"""Names with such values are not followed: all pipelines use the app, and topics are compared by value."""


def digest_pipelines(app_file: str | Path, graph: Graph) -> dict[str, str]:
    """Returns for each pipeline a hash of its definition, of its inputs, and of the code that it uses.

    Args:
        app_file: The user's file, which was just loaded.
        graph: The graph of its app.
    """
    topics = {topic.name: topic for topic in graph.topics}
    files = {name: _read_module(module) for name, module in user_modules(app_file).items()}
    return {pipeline.name: _digest(pipeline, topics, files) for pipeline in graph.pipelines}


def _digest(pipeline: Pipeline, topics: Mapping[str, Topic], files: Mapping[str, _Module]) -> str:
    parts = [f"{name}={fact}" for name, fact in sorted(pipeline.facts().items())]
    parts += [repr((pipeline.tables, pipeline.path))]
    parts += [repr(replace(topics[name], location=None)) for name in pipeline.inputs if name in topics]
    if pipeline.function is not None:
        function: Any = inspect.unwrap(pipeline.function)
        name = getattr(function, "__qualname__", "")
        reached = _Reached(files)
        reached.follow(getattr(function, "__module__", ""), None if "." in name else name)  # None: made by a function
        parts += sorted(reached.texts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass
class _Module:
    """The statements of a module, by the names that they define or change.

    Attributes:
        values: The values of the names.
        package: The name of its package, for relative imports.
        statements: The statements, by name.
        imports: For names that come from other modules: the module, and the name there, or None for the module itself.
        others: Statements that run whatever is used, such as loops and `with`.
    """

    values: Mapping[str, Any]
    package: str = ""
    statements: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    others: list[ast.stmt] = field(default_factory=list)


def _read_module(module: ModuleType) -> _Module:
    found = _Module(vars(module), module.__package__ or "")
    for statement in ast.parse(Path(str(module.__file__)).read_bytes()).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            found.imports.update(_imports(statement, found.package))
            names = set(_imports(statement, found.package))
        else:
            names = set(_defined_names(statement))
        for name in names:
            found.statements.setdefault(name, []).append(statement)
        if not (names or _has_no_effect(statement)):
            found.others.append(statement)
    return found


def _imports(statement: ast.Import | ast.ImportFrom, package: str) -> dict[str, tuple[str, str | None]]:
    """Returns what an import defines, as in `_Module.imports`."""
    if isinstance(statement, ast.Import):  # `import a.b` defines a, `import a.b as c` defines c
        return {each.asname or each.name.partition(".")[0]: (each.name, None) for each in statement.names}
    source = statement.module or ""
    if statement.level:
        parents = package.split(".")
        source = ".".join([*parents[: len(parents) - statement.level + 1], *([source] if source else [])])
    return {each.asname or each.name: (source, each.name) for each in statement.names}


def _has_no_effect(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or runs only in the main program."""
    if isinstance(statement, ast.If):
        return "__name__" in _used_names(statement.test)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _defined_names(statement: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement defines or changes; none if that is not known."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):  # RATES.update(…)
        targets = [statement.value.func] if isinstance(statement.value.func, ast.Attribute) else []
    for target in targets:
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


class _Reached:
    """Collects the statements that are reached from a function."""

    def __init__(self, files: Mapping[str, _Module]) -> None:
        self.texts: set[str] = set()
        self._files = files
        self._seen: set[tuple[str, str | None]] = set()

    def follow(self, module: str, name: str | None) -> None:
        """Add what a name of a module leads to; without a name, or for an unknown one, the whole module."""
        pending = [(module, name)]
        while pending:
            place = pending.pop()
            if place not in self._seen and place[0] in self._files:
                self._seen.add(place)
                pending += self._visit(*place)

    def _visit(self, module: str, name: str | None) -> Iterator[tuple[str, str | None]]:
        """Add the statements of one name; yields the names that they use."""
        file = self._files[module]
        if name is not None and isinstance(file.values.get(name), _DECLARATIONS):
            return
        if f"{module}.{name}" in self._files:  # a module of a package
            yield f"{module}.{name}", None
        elif name not in file.statements:
            name = None
        names = list(file.statements) if name is None else [name]
        yield from (file.imports[one] for one in names if one in file.imports)
        reached = [statement for one in names for statement in file.statements.get(one, ())]
        for statement in (*reached, *file.others):
            self.texts.add(f"{module}: {ast.unparse(statement)}")
            yield from ((module, used) for used in _used_names(statement) if used in file.statements)
            for node in ast.walk(statement):  # imports in functions
                if isinstance(node, ast.Import | ast.ImportFrom) and node is not statement:
                    yield from ((source, None) for source, _ in _imports(node, file.package).values())


def _used_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
