"""Our generated package and the official Python client live in one process."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from popproto.v2.definition_pb2 import Message
from popproto.v2.service_pb2 import ReceiveMessageRequest

OFFICIAL = (
    "import rocketmq\nfrom rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2, service_pb2_grpc\n"
)
OURS = """
import popclient
from popproto.v1 import admin_pb2 as our_admin, admin_pb2_grpc as our_admin_grpc
from popproto.v2 import admin_pb2_grpc, definition_pb2 as our_definition, service_pb2_grpc as our_service_grpc
"""
EXCHANGE = """
theirs = definition_pb2.Message(body=b"snow")
theirs.system_properties.born_timestamp.FromMilliseconds(1_360_281_600_000)
ours = our_definition.Message.FromString(theirs.SerializeToString())
assert type(ours) is not type(theirs)
assert (ours.body, ours.system_properties.born_timestamp.ToMilliseconds()) == (b"snow", 1_360_281_600_000)
assert definition_pb2.Message.FromString(ours.SerializeToString()) == theirs
"""


@pytest.mark.parametrize("imports", [OFFICIAL + OURS, OURS + OFFICIAL], ids=["official-first", "ours-first"])
def test_the_official_client_and_ours_import_in_one_process(imports: str, tmp_path: Path) -> None:
    run(imports + EXCHANGE, tmp_path)


def test_no_generated_module_is_imported_under_a_general_name(tmp_path: Path) -> None:
    run(
        OURS + "import sys\nassert not {'apache', 'popmq', 'proto'} & {name.split('.')[0] for name in sys.modules}",
        tmp_path,
    )


def test_times_are_filled_in_place() -> None:
    moment, hold = datetime(2013, 2, 8, tzinfo=UTC), timedelta(seconds=30, milliseconds=5)
    message, request = Message(), ReceiveMessageRequest()
    message.system_properties.born_timestamp.FromMilliseconds(1_360_281_600_123)
    message.system_properties.store_timestamp.FromDatetime(moment)
    request.invisible_duration.FromTimedelta(hold)
    request.long_polling_timeout.FromMilliseconds(20_000)

    message = Message.FromString(message.SerializeToString())
    request = ReceiveMessageRequest.FromString(request.SerializeToString())
    assert message.system_properties.born_timestamp.ToMilliseconds() == 1_360_281_600_123
    assert message.system_properties.store_timestamp.ToDatetime(UTC) == moment
    assert request.invisible_duration.ToTimedelta() == hold
    assert request.long_polling_timeout.ToMilliseconds() == 20_000


def test_a_timestamp_of_the_default_pool_is_refused() -> None:
    with pytest.raises(TypeError):
        Message().system_properties.born_timestamp.CopyFrom(Timestamp(seconds=1))


def run(program: str, home: Path) -> None:
    """In a process of its own; the official client writes its log below HOME."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=home, env={"HOME": str(home)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
