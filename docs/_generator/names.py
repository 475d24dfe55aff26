"""Writes the reference of public names as Markdown, from their signatures and docstrings, without importing them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import griffe

SOURCE: Final = Path(__file__).parent.parent.parent / "src"
WIDTH: Final = 100  # columns of a signature on one line
ONE_EXAMPLE: Final = re.compile(r"^Example:$", re.MULTILINE)  # the parser of docstrings knows `Examples:` only
UNPACKED: Final = re.compile(r"Unpack\[(\w+)\]")


def names_text(names: Iterable[str]) -> str:
    """The reference of public names: those of `headwater`, others with their module."""
    return "\n".join(_text(_find(name)) for name in names)


@cache
def _package() -> Any:
    return griffe.load("headwater", search_paths=[str(SOURCE)])


def _find(name: str) -> Any:
    found = _package()[name.removeprefix("headwater.")]
    return found.final_target if found.is_alias else found


def _text(found: Any) -> str:
    if found.is_class:
        return "\n".join([_class_text(found), *(_function_text(each, found.name) for each in _methods(found))])
    return _function_text(found)


def _class_text(found: Any) -> str:
    sections = _sections(found)
    parts = [f"## {found.name}\n"]
    arguments = next((section for section in sections if section.kind.value == "parameters"), None)
    if arguments is not None:  # made by users; other objects are returned to them
        parts.append(_code(f"{found.name}{_signature(found.parameters)}"))
    parts += _section_texts(sections)
    described = {each.name for each in arguments.value} if arguments is not None else set()
    described |= {each.name for section in sections if section.kind.value == "attributes" for each in section.value}
    parts.append(_attributes_text(found, described))
    return "\n".join(part for part in parts if part)


def _attributes_text(found: Any, described: set[str]) -> str:
    """The attributes, options and enumeration values of a class, each with its type."""
    lines = []
    for each in _members(found):
        if each.is_attribute and each.docstring and each.name not in described:
            type_ = f" (`{_quoted(each.annotation)}`)" if each.annotation else f" = `{_quoted(each.value)}`"
            lines.append(f"- `{each.name}`{type_}: {_first_paragraph(each)}")
    return "\n".join([*lines, ""]) if lines else ""


def _first_paragraph(found: Any) -> str:
    return _flat(found.docstring.value.split("\n\n")[0])


def _quoted(value: Any) -> str:
    return str(value).replace("'", '"')


def _methods(found: Any) -> Iterator[Any]:
    yield from (each for each in _members(found) if each.is_function and each.docstring)


def _members(found: Any) -> Iterator[Any]:
    """The public members of a class, those of its bases in the package included."""
    for each in found.all_members.values():
        member = each.final_target if each.is_alias else each
        if not member.name.startswith("_"):
            yield member


def _function_text(found: Any, owner: str | None = None) -> str:
    name = f"{owner}.{found.name}" if owner else found.name
    parts = [f"{'###' if owner else '##'} {name}\n"]
    returns = f" -> {found.returns}" if found.returns is not None else ""
    options = _options_of(found)
    parts.append(_code(f"{name}{_signature(found.parameters, returns, options)}"))
    parts += _section_texts(_sections(found), options)
    return "\n".join(parts)


def _options_of(found: Any) -> list[Any]:
    """The options of the typed dictionary behind `**options`; none without one."""
    for each in found.parameters:
        if each.kind is griffe.ParameterKind.var_keyword and (named := UNPACKED.search(str(each.annotation))):
            target = found.module[named[1]]
            return list(_members(target.final_target if target.is_alias else target))
    return []


def _signature(parameters: Any, returns: str = "", options: Iterable[Any] = ()) -> str:
    """A signature, on one line if it fits; `options` stand in place of `**options`."""
    kinds = griffe.ParameterKind
    given = [each for each in parameters if each.name not in ("self", "cls")]
    if options:
        given[-1:] = [
            griffe.Parameter(each.name, annotation=each.annotation, kind=kinds.keyword_only, default="…")
            for each in options
        ]
    words: list[str] = []
    for before, each in zip([None, *given], given, strict=False):
        if before is not None and before.kind is kinds.positional_only and each.kind is not kinds.positional_only:
            words.append("/")
        after_star = before is not None and before.kind in (kinds.keyword_only, kinds.var_positional)
        if each.kind is kinds.keyword_only and not after_star:
            words.append("*")
        words.append(_parameter(each))
    if given and given[-1].kind is kinds.positional_only:
        words.append("/")
    line = f"({', '.join(words)}){returns}"
    return line if len(line) <= WIDTH else "".join(["(\n", *(f"    {word},\n" for word in words), f"){returns}"])


def _parameter(each: Any) -> str:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
    type_ = f": {_quoted(each.annotation)}" if each.annotation is not None else ""
    default = f" = {_quoted(each.default)}" if each.default is not None and not stars else ""
    return f"{stars}{each.name}{type_}{default}"


def _sections(found: Any) -> list[Any]:
    if found.docstring is None:
        return []
    found.docstring.value = ONE_EXAMPLE.sub("Examples:", found.docstring.value)
    return list(found.docstring.parse("google", warnings=False))


def _section_texts(sections: list[Any], options: Iterable[Any] = ()) -> Iterator[str]:
    for section in sections:
        match section.kind.value:
            case "text":
                yield f"{section.value}\n"
            case "parameters" | "attributes":
                yield "\n".join([*_items(section.value, options), ""])
            case "raises":
                raised = (f"- `{each.annotation}`: {_flat(each.description)}" for each in section.value)
                yield "\n".join(["Raises:\n", *raised, ""])
            case "examples":
                yield _code("\n\n".join(text for _, text in section.value), "pycon")


def _items(described: Iterable[Any], options: Iterable[Any]) -> Iterator[str]:
    """What a docstring says of each argument; of `options`, what the typed dictionary says of each."""
    for each in described:
        if options and each.name in ("options", "attributes"):
            yield from (f"- `{one.name}`: {_first_paragraph(one)}" for one in options)
        else:
            yield f"- `{each.name}`: {_flat(each.description)}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n"
