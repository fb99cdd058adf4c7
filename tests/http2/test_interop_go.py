"""gRPC's own interoperability tests, by its client in Go."""

from __future__ import annotations

import pytest

from popserver.front.source import Source
from tests.http2.doors import served
from tests.http2.programs import INTEROP, program, run
from tests.support.certificates import Authority

# Without `custom_metadata`, see `service.py`, and those that need a credential, a balancer or reports of load.
CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
    "channel_soak",
)
# A soak's calls are judged by their answers; how long they take says nothing on a busy machine.
SOAK = (
    "--soak_iterations=100",
    "--soak_num_threads=4",
    "--soak_per_iteration_max_acceptable_latency_ms=60000",
    "--soak_overall_timeout_seconds=100",
)


@pytest.mark.parametrize("transport", ["plaintext", "tls"])
@pytest.mark.parametrize("case", CASES)
async def test_a_case_passes(source: Source, authority: Authority, case: str, transport: str) -> None:
    client = program(INTEROP)
    async with served(source) as wire_server:
        if transport == "tls":
            where = [f"--server_port={wire_server.tls_port}", "--use_tls", "--use_test_ca", f"--ca_file={authority.ca}"]
            where.append("--server_host_override=localhost")
        else:
            where = [f"--server_port={wire_server.port}"]
        ended = await run(client, "--server_host=127.0.0.1", *where, f"--test_case={case}", *SOAK)
    assert ended.code == 0, ended.said[-2_000:]
