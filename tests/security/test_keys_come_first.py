"""Who calls is asked before anything else is looked at: without a good key every call is answered alike,
whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import fairlead
from fairlead import errors
from fairlead.model.access import EVERY_RIGHT
from fairlead.model.api_keys import make_token
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.server.fila.v1 import admin_pb2, service_pb2
from fairlead.testing import ServerProcess, run_server
from fairlead.wire.calls import Answer, Open, decode, encode
from fairlead.wire.schemas import CHANNELS
from tests.doors.flight.raw import RawChannel
from tests.security.test_rights_at_doors import http

PATIENCE_S = 60
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED

#: What comes in place of a good key.
BAD = {
    "none": None,
    "of another server": f"Bearer {make_token()}",
    "of no form": "Bearer x",
    "of another scheme": "Basic eDp5",
    "empty": "",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("first") / "data"
    with run_server(
        data, grpc=True, http=True, settings={"durability": "os", "auth.mode": "keys"}
    ) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def root(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(
        server.address, api_key=(server.data / BOOTSTRAP_FILE).read_text().strip()
    ) as client:
        yield client


@pytest.fixture(params=BAD.values(), ids=BAD.keys())
def bad(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


# fila.v1

METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in (service_pb2, admin_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
UNKNOWN = ["/fila.v1.FilaService/Steal", "/x/y", "/fila.v1.FilaAdmin/"]


def status(
    server: ServerProcess, method: str, raw: bytes, authorization: str | None
) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        metadata = () if authorization is None else (("authorization", authorization),)
        call: Any = channel.unary_stream(method)(raw, timeout=PATIENCE_S, metadata=metadata)
        try:
            for _ in call:
                pass
        except grpc.RpcError as refused:
            return refused.code(), refused.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("method", [*METHODS, *UNKNOWN])
def test_a_call_of_fila_without_a_good_key_is_answered_alike_whatever_is_in_it(
    server: ServerProcess, method: str
) -> None:
    answers = {
        status(server, method, raw, BAD["of another server"]) for raw in (b"", b"\xff" * 50, b"\x0a\x01q")
    }
    assert answers == {status(server, METHODS[0], b"\x0a\x01q", BAD["of another server"])}
    assert {code for code, _ in answers} == {UNAUTHENTICATED}


def test_fila_takes_no_bad_key(server: ServerProcess, bad: str | None) -> None:
    assert {status(server, method, b"\xff", bad)[0] for method in (*METHODS[:3], UNKNOWN[0])} == {
        UNAUTHENTICATED
    }


def test_with_a_good_key_one_hears_what_is_wrong_with_a_call(
    server: ServerProcess, root: fairlead.Client
) -> None:
    good = f"Bearer {root.keys.create('good').secret}"
    assert status(server, METHODS[0], b"\xff" * 50, good)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert {status(server, method, b"", good)[0] for method in UNKNOWN} == {grpc.StatusCode.UNIMPLEMENTED}


def test_health_is_open_and_reflection_is_not(
    server: ServerProcess, root: fairlead.Client, bad: str | None
) -> None:
    def services(authorization: str | None) -> set[str]:
        metadata = () if authorization is None else (("authorization", authorization),)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            asked, timeout=PATIENCE_S, metadata=metadata
        )
        return {service.name for service in answer.list_services_response.service}

    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status == 1
        with pytest.raises(grpc.RpcError) as refused:
            services(bad)
        assert refused.value.code() is UNAUTHENTICATED
        assert "fila.v1.FilaService" in services(f"Bearer {root.keys.create('good').secret}")


# Flight

OPENINGS = {
    **{verb: encode(Open(verb)) for verb in CHANNELS},
    "an unknown verb": encode(Open("steal")),
    "another version": encode(Open("write", 99)),
    "nonsense": b"\xff\xff",
    "nothing": b"",
}


def bearing(authorization: str | None) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(
        headers=[] if authorization is None else [(b"authorization", authorization.encode())]
    )


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(flight.FlightError) as refused:
        call()
    fault = decode(refused.value.extra_info, Answer).error
    assert fault is not None
    return type(refused.value).__name__, fault.message


def open_channel(client: flight.FlightClient, command: bytes, options: flight.FlightCallOptions) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command), options)
    try:
        writer.begin(pa.schema([]))
        reader.read_chunk()
    finally:
        # Or its destructor says on stderr that it could not be closed.
        with suppress(pa.ArrowException, OSError):
            writer.close()


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_channel_without_a_good_key_is_refused_alike_whatever_it_is_for(
    server: ServerProcess, opening: str
) -> None:
    with flight.connect(f"grpc://{server.addresses['flight']}") as client:
        options = bearing(BAD["of another server"])
        assert refusal(lambda: open_channel(client, OPENINGS[opening], options)) == refusal(
            lambda: open_channel(client, OPENINGS["write"], options)
        )


def test_flight_takes_no_bad_key_and_says_so_in_a_way_that_every_client_knows(
    server: ServerProcess, bad: str | None
) -> None:
    with flight.connect(f"grpc://{server.addresses['flight']}") as client:
        kind, message = refusal(lambda: open_channel(client, OPENINGS["write"], bearing(bad)))
    assert kind == "FlightUnauthenticatedError"
    assert message.startswith("expected a valid API key")


@pytest.mark.parametrize(
    "method",
    ["DoExchange", "DoPut", "DoGet", "DoAction", "ListActions", "ListFlights", "GetFlightInfo", "GetSchema"],
)
@pytest.mark.parametrize("first", [b"", b"\x0a\x02\x08\x02"], ids=["nothing", "no command"])
def test_flight_asks_for_the_key_before_it_reads_the_first_frame(
    server: ServerProcess, method: str, first: bytes
) -> None:
    with grpc.insecure_channel(server.addresses["flight"]) as channel:
        call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            list(
                call(
                    iter([first]),
                    timeout=PATIENCE_S,
                    metadata=(("authorization", f"Bearer {make_token()}"),),
                )
            )
    assert refused.value.code() is UNAUTHENTICATED


@pytest.mark.parametrize("verb", CHANNELS)
def test_a_revoked_key_hears_of_nothing_else_on_a_channel_that_is_open(
    server: ServerProcess, root: fairlead.Client, verb: str
) -> None:
    """Neither of what is wrong with its requests, nor that there is nothing to see."""
    key = root.keys.create("to be revoked", list(map(str, EVERY_RIGHT)))
    with flight.connect(f"grpc://{server.addresses['flight']}") as client:
        channel = RawChannel(client, verb, options=bearing(f"Bearer {key.secret}"))
        assert channel.call(b"\xff")[0].error.code == "invalid_request"
        root.keys.revoke(key.info.id)
        assert channel.call(b"\xff")[0].error.code == errors.Unauthenticated.code


# HTTP


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("page", ["/metrics", "/metrics?name[]=x", "/nothing", "//[", "/healthz/../metrics"])
def test_a_page_without_a_good_key_is_refused_alike_whether_there_is_one_or_not(
    server: ServerProcess, page: str, method: str
) -> None:
    answer = http(server, page, make_token(), method)
    assert answer == http(server, "/metrics", make_token(), method)
    assert answer[0] == 401


@pytest.mark.parametrize("page", ["/", "/healthz", "/readyz"])
def test_whoever_watches_over_a_server_needs_no_key(server: ServerProcess, page: str) -> None:
    assert http(server, page, None)[0] == 200
    assert http(server, page, make_token())[0] == 200
