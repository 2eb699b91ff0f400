"""Random strangers at the ports of a server, by seed: mangled requests of fila.v1, mangled HTTP, mangled commands of the
Redis protocol, and bytes that are no protocol.

`fuzz.live` is their like at the Flight door.
"""

from __future__ import annotations

import contextlib
import random
import socket

import grpc
import hiredis

from fairlead.server.fila.v1 import admin_pb2, service_pb2
from tests.doors.resp.wire import pack
from tests.hostile import fuzz
from tests.hostile.by_hand import PATIENCE_S
from tests.hostile.resp import WORD_SEEDS

_SOUND = [
    (
        "FilaService/Enqueue",
        service_pb2.EnqueueRequest(
            queue="gone", headers={"a": "b", "traceparent": "00-1-1-01"}, payload=b"x"
        ),
    ),
    (
        "FilaService/Ack",
        service_pb2.AckRequest(queue="gone", message_id="01890000-0000-7000-8000-000000000000"),
    ),
    (
        "FilaService/Nack",
        service_pb2.NackRequest(queue="gone", message_id="01890000-0000-7000-8000-000000000000", error="e"),
    ),
    ("FilaAdmin/DeleteQueue", admin_pb2.DeleteQueueRequest(queue="gone")),
    ("FilaAdmin/GetStats", admin_pb2.GetStatsRequest(queue="gone")),
    ("FilaAdmin/GetConfig", admin_pb2.GetConfigRequest(key="throttle.x")),
    ("FilaAdmin/ListConfig", admin_pb2.ListConfigRequest(prefix="x")),
    ("FilaAdmin/Redrive", admin_pb2.RedriveRequest(dlq_queue="gone.dlq", count=5)),
    ("FilaAdmin/ListQueues", admin_pb2.ListQueuesRequest()),
    ("FilaAdmin/RevokeApiKey", admin_pb2.RevokeApiKeyRequest(key_id="gone")),
    ("FilaAdmin/GetAcl", admin_pb2.GetAclRequest(key_id="gone")),
]
_PAGES = [b"/", b"/healthz", b"/readyz", b"/metrics", b"/metrics?name[]=fairlead_queues", b"/%2e%2e"]
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
#: A stream opened by hand: POST, http, a path of Flight's, and a frame of data behind it.
_HEADERS = b"\0\0\x1d\x01\x04\0\0\0\x01\x83\x86\x44\x0b/arrow.flig\x41\x01x\x5f\x05a/grp\x40\x02te\x02tr"
_DATA = b"\0\0\x0a\0\x01\0\0\0\x01\0\0\0\0\x05hello"


def fila(seed: int, address: str) -> None:
    """A call whose request is nearly one."""
    chance = random.Random(seed)
    method, request = chance.choice(_SOUND)
    raw = request.SerializeToString()
    metadata = [
        ("traceparent", "x" * chance.randrange(200)),
        ("authorization", f"Bearer {chance.randrange(10)}"),
    ]
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        for _ in range(5):
            mangled = fuzz.mangle(chance, raw)
            try:
                channel.unary_unary(f"/fila.v1.{method}")(mangled, timeout=PATIENCE_S, metadata=metadata)
            except grpc.RpcError as refused:
                details = refused.details() or ""  # type: ignore[attr-defined]
                code = refused.code()  # type: ignore[attr-defined]
                what = f"seed {seed}: {method} {mangled!r}: {code} {details}"
                assert "Traceback" not in details, what
                assert code not in (
                    grpc.StatusCode.UNKNOWN,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    grpc.StatusCode.INTERNAL,
                ), what


def http(seed: int, address: str) -> None:
    """A request that is nearly one: an answer in HTTP, or a closed connection."""
    chance = random.Random(seed)
    headers = [b"Host: x", b"Accept: */*", b"Connection: close", b"Authorization: Bearer x"]
    headers.append(b"Content-Length: %d" % chance.choice([0, 5, -1, 1 << 40]))
    chance.shuffle(headers)
    raw = (
        b"%s %s HTTP/1.1\r\n" % (chance.choice([b"GET", b"HEAD", b"POST"]), chance.choice(_PAGES))
        + b"\r\n".join(headers)
        + b"\r\n\r\n"
    )
    answer = _talk(address, fuzz.mangle(chance, raw))
    assert not answer or answer.startswith(b"HTTP/1.1 "), f"seed {seed}: {raw!r}: {answer[:200]!r}"
    assert b"Traceback" not in answer, f"seed {seed}: {raw!r}: {answer[:2000]!r}"


def resp(seed: int, address: str) -> None:
    """A pipeline that is nearly one: each reply is a value of the protocol, or the connection is closed."""
    chance = random.Random(seed)
    commands = [pack(*chance.choice(WORD_SEEDS).replace(b" q", b" gone").split()) for _ in range(4)]
    raw = fuzz.mangle(chance, b"".join([pack("HELLO", chance.choice("23")), *commands]))
    answer = _talk(address, raw)
    assert b"Traceback" not in answer, f"seed {seed}: {raw!r}: {answer[:2000]!r}"
    reader = hiredis.Reader(notEnoughData=None)
    reader.feed(answer)
    while reader.has_data():
        reader.gets()


def noise(seed: int, address: str) -> None:
    """What is no gRPC, or only begins like it. Whatever comes back, it must end."""
    chance = random.Random(seed)
    raw = b"".join(
        chance.choice(
            [_HEADERS, _DATA, b"\0\0\x08\x06\0\0\0\0\0ping-him", b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08"]
        )
        for _ in range(5)
    )
    raw = (
        fuzz.mangle(chance, _HELLO + raw)
        if chance.random() < 0.8
        else chance.randbytes(chance.randrange(1, 2000))
    )
    answer = _talk(address, raw)
    assert b"Traceback" not in answer, f"seed {seed}: {raw!r}"


def _talk(address: str, raw: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    came = b""
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(65_536):
            came += more
    return came
