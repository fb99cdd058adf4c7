"""The compiled schema and the field table of RocketMQ 5 say the same."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pb2 import MethodDescriptorProto as Rpc

from popproto.v1 import admin_pb2 as popmq_admin_pb2
from popproto.v2 import admin_pb2, definition_pb2, service_pb2

TABLE = Path(__file__).parents[2] / "proto" / "fields.tsv"
FILES = [
    FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for module in (definition_pb2, service_pb2, admin_pb2)
]
POPMQ_ADMIN = FileDescriptorProto.FromString(popmq_admin_pb2.DESCRIPTOR.serialized_pb)


class Row(NamedTuple):
    kind: str
    owner: str
    name: str
    number: str
    type: str
    label: str


# PopMQ's own fields, which other clients and servers ignore: far from the numbers that RocketMQ may give next.
OWN = {
    Row("message-field", f"apache.rocketmq.v2.{owner}", name, number, type_, "optional")
    for owner, name, number, type_ in (
        ("SystemProperties", "delay", "1001", "google.protobuf.Duration"),
        ("SendResultEntry", "queue_id", "1001", "int32"),
        ("SendResultEntry", "delivery_timestamp", "1002", "google.protobuf.Timestamp"),
    )
}


def test_every_row_of_the_table_is_in_the_schema() -> None:
    assert table() - schema() == set()


def test_the_schema_holds_beyond_the_table_only_fields_of_our_own() -> None:
    assert schema() - table() == OWN


def test_every_type_of_the_schema_is_named_in_the_table() -> None:
    named = {row.owner for row in table()} | {word for row in table() for word in row.type.split()}
    assert {name for file in FILES for name in types(file)} - named == set()


def test_the_table_names_nothing_twice() -> None:
    with TABLE.open(encoding="utf-8") as lines:
        assert len(list(lines)) == len({(row.owner, row.name) for row in table()})


def test_answers_of_the_administration_begin_with_a_status() -> None:
    assert POPMQ_ADMIN.service[0].method
    messages = {message.name: message for message in POPMQ_ADMIN.message_type}
    for rpc in POPMQ_ADMIN.service[0].method:
        assert rpc.input_type == f".popmq.v1.{rpc.name}Request"
        assert rpc.output_type == f".popmq.v1.{rpc.name}Response"
        first = messages[f"{rpc.name}Response"].field[0]
        assert (first.name, first.number, first.type_name) == ("status", 1, ".apache.rocketmq.v2.Status")


def table() -> set[Row]:
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {Row(*cells) for cells in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)}


def schema() -> set[Row]:
    return {row for file in FILES for row in rows_of_file(file)}


def rows_of_file(file: FileDescriptorProto) -> Iterator[Row]:
    for name, of_type in types(file).items():
        yield from rows_of_enum(name, of_type) if isinstance(of_type, EnumDescriptorProto) else rows_of(name, of_type)
    for service in file.service:
        for number, rpc in enumerate(service.method, start=1):
            types_of_call = f"{rpc.input_type[1:]} -> {rpc.output_type[1:]}"
            yield Row("rpc", f"{file.package}.{service.name}", rpc.name, str(number), types_of_call, streaming(rpc))


def types(file: FileDescriptorProto) -> Mapping[str, DescriptorProto | EnumDescriptorProto]:
    """Every message and enum of the file, nested ones included, by its full name; not the entries of maps."""
    found: dict[str, DescriptorProto | EnumDescriptorProto] = {}

    def walk(scope: str, enums: Iterator[EnumDescriptorProto], messages: Iterator[DescriptorProto]) -> None:
        found.update((f"{scope}.{enum.name}", enum) for enum in enums)
        for message in messages:
            if not message.options.map_entry:
                found[f"{scope}.{message.name}"] = message
                walk(f"{scope}.{message.name}", iter(message.enum_type), iter(message.nested_type))

    walk(file.package, iter(file.enum_type), iter(file.message_type))
    return found


def rows_of_enum(owner: str, enum: EnumDescriptorProto) -> Iterator[Row]:
    for value in enum.value:
        yield Row("enum-value", owner, value.name, str(value.number), "enum-value", "")


def rows_of(owner: str, message: DescriptorProto) -> Iterator[Row]:
    maps = {f".{owner}.{entry.name}": entry for entry in message.nested_type if entry.options.map_entry}
    for field in message.field:
        if entry := maps.get(field.type_name):
            type_, label = f"map<{type_of(entry.field[0])},{type_of(entry.field[1])}>", "map"
        else:
            type_, label = type_of(field), label_of(field, message)
        yield Row("message-field", owner, field.name, str(field.number), type_, label)


def type_of(field: FieldDescriptorProto) -> str:
    return field.type_name[1:] or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def label_of(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return "repeated"
    if field.proto3_optional:
        return "optional"
    return f"oneof {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""


def streaming(rpc: Rpc) -> str:
    kinds = {(False, False): "unary", (False, True): "server-stream", (True, True): "bidi-stream"}
    return kinds[rpc.client_streaming, rpc.server_streaming]
