"""How the type of a table's column grows where a value does not fit: it gets fields, or a wider type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FIELDS = 1000
"""The most fields within a column that may be added: those of a payload could be any number."""
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Of integers, by their bits."""
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Growth:
    """What a table's format can change of a column that has values. Fields are added within structs, also in
    lists.

    Attributes:
        widens: whether integers, floats and decimals get wider ones of the same kind. A decimal keeps its
            scale.
        dates: whether dates become timestamps without time zone.
        in_maps: whether structs that are the values of maps get fields.
    """

    widens: bool = True
    dates: bool = False
    in_maps: bool = True

    def grown(self, kept: pa.DataType, given: pa.DataType) -> pa.DataType:
        """The type ``kept`` with what it lacks to hold values of ``given``, as far as the format can."""
        import pyarrow as pa

        types = pa.types
        if types.is_struct(kept) and types.is_struct(given):
            of_given = {field.name: field for field in given}
            fields = [
                field.with_type(self.grown(field.type, of_given.pop(field.name).type))
                if field.name in of_given
                else field
                for field in kept
            ]
            return pa.struct([*fields, *of_given.values()])
        if types.is_map(kept) and types.is_map(given):
            item = kept.item_field
            if self.in_maps:
                item = item.with_type(self.grown(kept.item_type, given.item_type))
            return pa.map_(kept.key_field, item)
        if _is_list(kept) and _is_list(given):
            return pa.list_(kept.value_field.with_type(self.grown(kept.value_type, given.value_type)))
        return given if self._is_wider(kept, given) else self._decimal(kept, given)

    def _is_wider(self, kept: pa.DataType, given: pa.DataType) -> bool:
        import pyarrow as pa

        types = pa.types
        if types.is_date32(kept) and types.is_timestamp(given):
            return self.dates and given.tz is None
        kinds = (types.is_signed_integer, types.is_unsigned_integer, types.is_floating)
        is_same_kind = any(is_kind(kept) and is_kind(given) for is_kind in kinds)
        return self.widens and is_same_kind and given.bit_width > kept.bit_width

    def _decimal(self, kept: pa.DataType, given: pa.DataType) -> pa.DataType:
        """``kept``, if it is a decimal with as many more digits before the point as ``given`` has."""
        import pyarrow as pa

        types = pa.types
        if not self.widens or not types.is_decimal128(kept):
            return kept
        if types.is_integer(given):
            whole = _DIGITS[given.bit_width]
        elif types.is_decimal(given):
            whole = given.precision - given.scale
        else:
            return kept
        digits = min(whole + kept.scale, _MOST_DIGITS)
        return pa.decimal128(digits, kept.scale) if digits > kept.precision else kept


def fields_within(kind: pa.DataType) -> list[pa.Field]:
    """The fields of ``kind``; none if it is not nested."""
    return [kind.field(at) for at in range(kind.num_fields)]


def count_fields(kind: pa.DataType) -> int:
    """The fields within ``kind``, at all depths."""
    return sum(1 + count_fields(field.type) for field in fields_within(kind))


def lacked_by(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """The columns of ``rows``, which were fitted to a table, that it lacks, or has with less."""
    kept = {field.name: field.type for field in table}
    return [field for field in rows if field.name not in kept or not takes(kept[field.name], field.type)]


def takes(kept: pa.DataType, declared: pa.DataType) -> bool:
    """Whether ``declared`` has the types of ``kept``, and no field that this lacks."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kept) and types.is_struct(declared):
        of_kept = {field.name: field.type for field in kept}
        return all(field.name in of_kept and takes(of_kept[field.name], field.type) for field in declared)
    if types.is_map(kept) and types.is_map(declared):
        return bool(kept.key_type == declared.key_type) and takes(kept.item_type, declared.item_type)
    if _is_list(kept) and _is_list(declared):
        return takes(kept.value_type, declared.value_type)
    return bool(kept == declared)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
