"""Schema evolution: which changes of a topic's type are accepted, and how old batches are read.

Accepted: a new field that is optional or has a default, a wider number type, a required field that becomes
optional. Rejected: every change that makes old events unreadable or changes their meaning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import SchemaConflictError
from headwater.events.codec import storage_schema
from headwater.events.dataframes import fit_dataframe
from headwater.events.validator import InvalidValueError, field_default

__all__ = ["Difference", "FieldChange", "compare", "merge", "upgrade"]


@dataclass(frozen=True)
class FieldChange:
    """A field that differs: its path, and its description in the old and the new schema; None where it is missing."""

    path: str
    old: str | None
    new: str | None
    note: str = ""

    def line(self, sign: str) -> str:
        """Returns the change on one line, such as `~ amount: int32 → int64`."""
        shape = " → ".join(text for text in (self.old, self.new) if text is not None)
        return f"{sign} {self.path}: {shape}" + (f"   ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Difference:
    """The fields that a new schema changes.

    Attributes:
        added: New fields that are optional or have a default. Accepted.
        widened: Number types with a larger range. Accepted.
        relaxed: Required fields that became optional. Accepted.
        removed: Fields that no longer exist. Rejected.
        retyped: Fields of another type. Rejected.
        tightened: Optional fields that became required, and new required fields without a default. Rejected.
        renamed: Pairs of a removed and an added field of the same type: probably one field that was renamed.

    Example:
        >>> old = pa.schema([pa.field("n", pa.int32())])
        >>> new = pa.schema([pa.field("n", pa.int64()), pa.field("note", pa.string())])
        >>> difference = compare(old, new)
        >>> difference.compatible, difference.lines()
        (True, ['~ n: int32 → int64   (wider)', '+ note: string'])
    """

    added: tuple[FieldChange, ...] = ()
    widened: tuple[FieldChange, ...] = ()
    relaxed: tuple[FieldChange, ...] = ()
    removed: tuple[FieldChange, ...] = ()
    retyped: tuple[FieldChange, ...] = ()
    tightened: tuple[FieldChange, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def compatible(self) -> bool:
        """Whether old events can be read under the new schema."""
        return not (self.removed or self.retyped or self.tightened)

    def lines(self) -> list[str]:
        """Returns one line per change: `+` added, `~` changed and accepted, `-` and `!` rejected."""
        lines = [change.line("!") for change in (*self.retyped, *self.tightened)]
        lines += [change.line("-") for change in self.removed]
        lines += [change.line("~") for change in (*self.widened, *self.relaxed)]
        lines += [change.line("+") for change in self.added]
        return lines + [f"  was {old} renamed to {new}? old events know only {old}" for old, new in self.renamed]


def _compare_fields(old: Iterable[pa.Field], new: Iterable[pa.Field], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields the attribute of `Difference` and the value to add to it, in the order of the fields."""
    before = {item.name: item for item in old}
    after = {item.name: item for item in new}
    fresh = [item for name, item in after.items() if name not in before]
    for name, item in before.items():
        if name not in after:
            yield "removed", FieldChange(prefix + name, _describe_field(item), None)
            # Only a hint for the error message: a new field of the same type may be the old one under another name.
            twin = next((other for other in fresh if other.type == item.type), None)
            if twin is not None:
                yield "renamed", (prefix + name, prefix + twin.name)
    for name, item in after.items():
        if name in before:
            yield from _compare_field(before[name], item, prefix + name)
        elif item.nullable or field_default(item) is not None:
            yield "added", FieldChange(prefix + name, None, _describe_field(item))
        else:
            note = "required without a default: old events have none"
            yield "tightened", FieldChange(prefix + name, None, _describe_field(item), note)


def _compare_field(old: pa.Field, new: pa.Field, path: str) -> Iterator[tuple[str, Any]]:
    if old.nullable != new.nullable:
        kind, note = ("relaxed", "optional now") if new.nullable else ("tightened", "old events may have none")
        yield kind, FieldChange(path, _describe_field(old), _describe_field(new), note)
    old_type, new_type = old.type, new.type
    if pa.types.is_struct(old_type) and pa.types.is_struct(new_type):
        yield from _compare_fields(old_type, new_type, f"{path}.")
    elif pa.types.is_map(old_type) and pa.types.is_map(new_type):
        yield from _compare_field(old_type.item_field, new_type.item_field, f"{path}{{}}")
    elif pa.types.is_list(old_type) and pa.types.is_list(new_type):
        yield from _compare_field(old_type.value_field, new_type.value_field, f"{path}[]")
    elif _is_wider(old_type, new_type):
        yield "widened", FieldChange(path, str(old_type), str(new_type), "wider")
    elif old_type != new_type:
        note = "narrower: old values may not fit" if _is_wider(new_type, old_type) else ""
        yield "retyped", FieldChange(path, str(old_type), str(new_type), note)


def _describe_field(item: pa.Field) -> str:
    return f"{item.type}" + ("" if item.nullable else " required")


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns whether the new type holds every value of the old one and belongs to the same family."""
    for in_family in (pa.types.is_signed_integer, pa.types.is_floating):
        if in_family(old) and in_family(new):
            return bool(old.bit_width < new.bit_width)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new) and old != new:
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return False


def compare(old: pa.Schema, new: pa.Schema) -> Difference:
    """Returns the changes between two schemas; the order of fields does not matter.

    Example:
        >>> renamed = compare(pa.schema([pa.field("a", pa.int64())]), pa.schema([pa.field("b", pa.int64())]))
        >>> renamed.compatible, renamed.renamed
        (False, (('a', 'b'),))
    """
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for kind, change in _compare_fields(old, new, ""):
        found[kind].append(change)
    return Difference(**{kind: tuple(changes) for kind, changes in found.items()})


def merge(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Returns the topic's schema after the change: the old fields in their order with their new types, then new ones.

    Example:
        >>> merge(pa.schema([("b", pa.int32())]), pa.schema([("a", pa.string()), ("b", pa.int64())])).names
        ['b', 'a']

    Raises:
        SchemaConflictError: Old events cannot be read; `data` has the `fields` and the `difference`.
    """
    difference = compare(old, new)
    if difference.compatible:
        return pa.schema(_merge_fields(old, new), new.metadata)
    refused = [*difference.retyped, *difference.tightened, *difference.removed]
    raise SchemaConflictError(
        f"old events cannot be read under the new type: {', '.join(change.path for change in refused[:5])}",
        detail="\n".join(difference.lines()),
        fix="keep the old fields and add new ones as optional or with a default, or write to a new topic",
        fields=[change.path for change in refused],
        difference=difference.lines(),
    )


def _merge_fields(old: Iterable[pa.Field], new: Iterable[pa.Field]) -> list[pa.Field]:
    before = {item.name: item for item in old}
    after = {item.name: item for item in new}
    kept = [after[name].with_type(_merge_types(item.type, after[name].type)) for name, item in before.items()]
    return kept + [item for name, item in after.items() if name not in before]


def _merge_types(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Returns the new type, with the members of its structs in the old order."""
    if pa.types.is_struct(new):
        return pa.struct(_merge_fields(old, new))
    if pa.types.is_map(new):
        return pa.map_(new.key_type, new.item_field.with_type(_merge_types(old.item_type, new.item_type)))
    if pa.types.is_list(new):
        return pa.list_(new.value_field.with_type(_merge_types(old.value_type, new.value_type)))
    return new


def upgrade(batch: pa.RecordBatch, to: pa.Schema) -> pa.RecordBatch:
    """Returns an old batch under a later schema of its topic.

    Missing fields get their default or null, and numbers are widened, also inside structs. A batch that already has
    the schema is returned unchanged. Rows of tombstones stay null.

    Example:
        >>> old = pa.RecordBatch.from_pylist([{"n": 1}])
        >>> new = pa.schema([("n", pa.int64()), pa.field("unit", pa.string(), metadata={"default": '"kg"'})])
        >>> upgrade(old, new).to_pylist()
        [{'n': 1, 'unit': 'kg'}]

    Raises:
        SchemaConflictError: The batch was not written under an earlier schema of this topic.
    """
    if batch.schema.equals(to, check_metadata=False):
        return batch
    try:
        # The storage schema accepts nulls in required fields, which tombstones have.
        return pa.RecordBatch.from_arrays(fit_dataframe(batch, storage_schema(to)), schema=to)
    except InvalidValueError as misfit:
        raise SchemaConflictError(
            f"a batch cannot be read under the schema: {misfit.path}: {misfit.reason}",
            detail="\n".join(compare(batch.schema, to).lines()),
            fields=[misfit.path],
        ) from None
