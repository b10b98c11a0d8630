"""Read protocol buffers with Google's library, from a schema in a few lines.

A schema names the fields used of each message, a word each: `planes=1*XPlane` is field 1, repeated
messages; `name=2:string` is a scalar. The library skips other fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evenstep.errors import MissingExtra, TraceError

_FIELD = re.compile(r"(\w+)=(\d+)([:*])(\w+)")


@dataclass
class Schema:
    """Messages with the fields used of each; the first is the one that is read."""

    package: str
    fields: Mapping[str, str]

    @cached_property
    def kind(self) -> Any:
        """The class of the message. Raises `MissingExtra` without the library."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ModuleNotFoundError:
            purpose = f"reading {self.package}"
            raise MissingExtra("protobuf", extra="analyze", purpose=purpose) from None
        kinds = descriptor_pb2.FieldDescriptorProto
        name = f"{self.package}.proto"
        file = descriptor_pb2.FileDescriptorProto(name=name, package=self.package)
        file.syntax = "proto3"
        for message, fields in self.fields.items():
            described = file.message_type.add(name=message)
            for name, number, sort, kind in _FIELD.findall(fields):
                field = described.field.add(name=name, number=int(number))
                field.label = kinds.LABEL_REPEATED if sort == "*" else kinds.LABEL_OPTIONAL
                if kind in self.fields:
                    field.type, field.type_name = kinds.TYPE_MESSAGE, f".{self.package}.{kind}"
                else:
                    field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        found = pool.FindMessageTypeByName(f"{self.package}.{next(iter(self.fields))}")
        return message_factory.GetMessageClass(found)

    def parse(self, data: bytes, path: Path) -> Any:
        """Parse a message. Raises `TraceError` where the bytes are damaged."""
        kind = self.kind
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(data)
        except (DecodeError, RecursionError):
            what = f"{path} is damaged or cut short; copy or write it again"
            raise TraceError(what) from None
