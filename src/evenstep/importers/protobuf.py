"""Read protocol buffers with Google's library, from a schema in a few lines.

A schema names the fields used of each message, a word each: `planes=1*XPlane` is field 1, repeated
messages; `name=2:string` is a scalar. The library skips other fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenstep.errors import MissingExtra, TraceError

_FIELD = re.compile(r"(\w+)=(\d+)([:*])(\w+)")


def messages(package: str, schema: Mapping[str, str]) -> dict[str, Any]:
    """Create a class for each message of a schema. Raises `MissingExtra` without the library."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError:
        raise MissingExtra("protobuf", extra="analyze", purpose=f"reading {package}") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    file.syntax = "proto3"
    for message, fields in schema.items():
        described = file.message_type.add(name=message)
        for name, number, sort, kind in _FIELD.findall(fields):
            field = described.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if sort == "*" else kinds.LABEL_OPTIONAL
            if kind in schema:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in schema
    }


def parse(kind: Any, data: bytes, path: Path) -> Any:
    """Parse a message. Raises `TraceError` where the bytes are damaged."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except (DecodeError, RecursionError):
        raise TraceError(f"{path} is damaged or cut short; copy or write it again") from None
