"""gRPC reflection serves the schemas of the private pool."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from popproto.pool import POOL
from popproto.v1 import admin_pb2 as popmq_admin_pb2
from popproto.v2 import admin_pb2, service_pb2

SERVICES = [
    service_pb2.DESCRIPTOR.services_by_name["MessagingService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
    popmq_admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
]


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = grpc.aio.server()
    reflection.enable_server_reflection(SERVICES, server, pool=POOL)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(grace=None)


async def test_reflection_lists_the_services(address: str) -> None:
    answer = await ask(address, ServerReflectionRequest(list_services=""))
    listed = [service.name for service in answer.list_services_response.service]
    assert "apache.rocketmq.v2.MessagingService" in listed
    assert sorted(listed) == sorted(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
async def test_reflection_hands_out_a_complete_schema(address: str, service: str) -> None:
    """A tool that knows nothing can build every call from the files it is given."""
    files: dict[str, FileDescriptorProto] = {}
    answer = await ask(address, ServerReflectionRequest(file_containing_symbol=service))
    missing = take(answer, files)
    while missing:
        missing = take(await ask(address, ServerReflectionRequest(file_by_filename=missing.pop())), files)

    pool = DescriptorPool()
    while files:
        ready = [name for name, file in files.items() if not files.keys() & set(file.dependency)]
        for name in ready:
            pool.AddSerializedFile(files.pop(name).SerializeToString())
    rebuilt, ours = pool.FindServiceByName(service), POOL.FindServiceByName(service)
    assert [signature(method) for method in rebuilt.methods] == [signature(method) for method in ours.methods]


def signature(method: MethodDescriptor) -> tuple[str, list[str], list[str]]:
    return method.name, [field.name for field in method.input_type.fields], [f.name for f in method.output_type.fields]


def take(answer: ServerReflectionResponse, files: dict[str, FileDescriptorProto]) -> set[str]:
    """Adds the files of an answer; returns the names of those still needed."""
    for serialized in answer.file_descriptor_response.file_descriptor_proto:
        file = FileDescriptorProto.FromString(serialized)
        files[file.name] = file
    return {name for file in files.values() for name in file.dependency} - files.keys()


async def ask(address: str, request: ServerReflectionRequest) -> ServerReflectionResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        call = ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
        async for answer in call:
            return answer
    raise AssertionError(f"no answer to {request}")
