"""Schema evolution: which changes of a topic's type are accepted, and how old batches are read.

Accepted: a new field that is optional or has a default, a wider number, a required field that becomes
optional. Rejected: anything that would make old events unreadable or change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from headwater.errors import SchemaConflictError
from headwater.events.codec import storage_schema
from headwater.events.dataframes import fit_dataframe
from headwater.events.validator import InvalidValueError, field_default

__all__ = ["Difference", "FieldChange", "compare", "merge", "upgrade"]

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_FLOATS = [pa.float32(), pa.float64()]


@dataclass(frozen=True)
class FieldChange:
    """One field that differs: its path, and how the old and the new schema have it (None: not at all)."""

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
    """What a new schema changes, by field.

    Attributes:
        added: New fields that old events can be given: optional, or with a default. Taken.
        widened: Numbers that hold more than before. Taken.
        relaxed: Required fields that became optional. Taken.
        removed: Fields that are gone. Refused.
        retyped: Fields of another type. Refused.
        tightened: Optional fields that became required, and new required fields without a default. Refused.
        renamed: Pairs of a removed and an added field with the same type: most likely one field renamed.

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
        """Returns the difference for people: `+` added, `~` changed and taken, `-` and `!` refused."""
        lines = [change.line("!") for change in (*self.retyped, *self.tightened)]
        lines += [change.line("-") for change in self.removed]
        lines += [change.line("~") for change in (*self.widened, *self.relaxed)]
        lines += [change.line("+") for change in self.added]
        return lines + [f"  was {old} renamed to {new}? old events know only {old}" for old, new in self.renamed]


@dataclass
class _Comparison:
    added: list[FieldChange] = field(default_factory=list)
    widened: list[FieldChange] = field(default_factory=list)
    relaxed: list[FieldChange] = field(default_factory=list)
    removed: list[FieldChange] = field(default_factory=list)
    retyped: list[FieldChange] = field(default_factory=list)
    tightened: list[FieldChange] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)

    def compare_fields(self, old: Iterable[pa.Field], new: Iterable[pa.Field], prefix: str) -> None:
        before = {item.name: item for item in old}
        after = {item.name: item for item in new}
        gone = [item for name, item in before.items() if name not in after]
        fresh = [item for name, item in after.items() if name not in before]
        for name in before.keys() & after.keys():
            self.compare_field(before[name], after[name], prefix + name)
        for item in gone:
            self.removed.append(FieldChange(prefix + item.name, _describe_field(item), None))
            twin = next((other for other in fresh if other.type == item.type), None)
            if twin is not None:
                self.renamed.append((prefix + item.name, prefix + twin.name))
        for item in fresh:
            fillable = item.nullable or field_default(item) is not None
            note = "" if fillable else "required without a default: old events have none"
            change = FieldChange(prefix + item.name, None, _describe_field(item), note)
            (self.added if fillable else self.tightened).append(change)

    def compare_field(self, old: pa.Field, new: pa.Field, path: str) -> None:
        if old.nullable and not new.nullable:
            self.tightened.append(
                FieldChange(path, _describe_field(old), _describe_field(new), "old events may have none")
            )
        elif new.nullable and not old.nullable:
            self.relaxed.append(FieldChange(path, _describe_field(old), _describe_field(new), "optional now"))
        self.compare_type(old.type, new.type, path)

    def compare_type(self, old: pa.DataType, new: pa.DataType, path: str) -> None:
        if pa.types.is_struct(old) and pa.types.is_struct(new):
            self.compare_fields(old, new, f"{path}.")
        elif pa.types.is_map(old) and pa.types.is_map(new):
            self.compare_field(old.item_field, new.item_field, f"{path}{{}}")
        elif pa.types.is_list(old) and pa.types.is_list(new):
            self.compare_field(old.value_field, new.value_field, f"{path}[]")
        elif _is_wider(old, new):
            self.widened.append(FieldChange(path, str(old), str(new), "wider"))
        elif old != new:
            note = "narrower: old values may not fit" if _is_wider(new, old) else ""
            self.retyped.append(FieldChange(path, str(old), str(new), note))


def _describe_field(item: pa.Field) -> str:
    return f"{item.type}" + ("" if item.nullable else " required")


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of the old type is a value of the new one, of the same family."""
    for family in (_INTEGERS, _FLOATS):
        if old in family and new in family:
            return family.index(old) < family.index(new)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new) and old != new:
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return False


def compare(old: pa.Schema, new: pa.Schema) -> Difference:
    """Returns what the new schema changes; the order of fields does not matter.

    Example:
        >>> renamed = compare(pa.schema([pa.field("a", pa.int64())]), pa.schema([pa.field("b", pa.int64())]))
        >>> renamed.compatible, renamed.renamed
        (False, (('a', 'b'),))
    """
    found = _Comparison()
    found.compare_fields(old, new, "")
    order = {name: place for place, name in enumerate(chain(old.names, new.names))}

    def in_order(changes: list[FieldChange]) -> tuple[FieldChange, ...]:
        return tuple(sorted(changes, key=lambda change: order.get(change.path.split(".")[0], 0)))

    return Difference(
        added=in_order(found.added),
        widened=in_order(found.widened),
        relaxed=in_order(found.relaxed),
        removed=in_order(found.removed),
        retyped=in_order(found.retyped),
        tightened=in_order(found.tightened),
        renamed=tuple(found.renamed),
    )


def merge(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The schema a topic has from now on: the old fields in their order, as the new schema has them, then new ones.

    Example:
        >>> merge(pa.schema([("b", pa.int32())]), pa.schema([("a", pa.string()), ("b", pa.int64())])).names
        ['b', 'a']

    Raises:
        SchemaConflictError: Old events could not be read; `data` has the `compare_fields` and the `difference`.
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
    """Returns an old batch as if it had been written under a later schema of its topic.

    Missing fields get their default or null, numbers are widened, structs inside likewise; a batch that has the
    schema already is returned as it is. Rows of tombstones stay null.

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
        return pa.RecordBatch.from_arrays(fit_dataframe(batch, storage_schema(to)), schema=to)
    except InvalidValueError as misfit:
        raise SchemaConflictError(
            f"a batch cannot be read under the schema: {misfit.path}: {misfit.reason}",
            detail="\n".join(compare(batch.schema, to).lines()),
            fields=[misfit.path],
        ) from None
