"""Fila's published client and its own generated stubs, against a server process that asks for keys."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fila
import grpc
import pytest
from fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc

from fairlead.clock import SystemClock
from fairlead.testing import run_server
from tests.doors.fila.servers import PATIENCE_S, eventually

OK = grpc.StatusCode.OK
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
FORBIDDEN = grpc.StatusCode.PERMISSION_DENIED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNKNOWN_KEY = f"fl_{'a' * 12}_{'b' * 43}"
ALL_KINDS = ("admin", "consume", "produce", "quarantine", "read-payload", "redrive")


class Caller:
    """Fila's stubs with a key, the way its client sends it; and that client itself."""

    def __init__(self, address: str, key: str | None) -> None:
        self.key = key
        self.client = fila.Client(address, api_key=key)
        # Its own channel, which puts the key into every call.
        self.admin = admin_pb2_grpc.FilaAdminStub(self.client._channel)
        self.service = service_pb2_grpc.FilaServiceStub(self.client._channel)

    def queue(self, name: str) -> None:
        self.admin.CreateQueue(admin_pb2.CreateQueueRequest(name=name))

    def create(
        self, name: str, *, superadmin: bool = False, expires_at_ms: int = 0
    ) -> admin_pb2.CreateApiKeyResponse:
        request = admin_pb2.CreateApiKeyRequest(
            name=name, is_superadmin=superadmin, expires_at_ms=expires_at_ms
        )
        return self.admin.CreateApiKey(request)

    def revoke(self, key_id: str) -> None:
        self.admin.RevokeApiKey(admin_pb2.RevokeApiKeyRequest(key_id=key_id))

    def listed(self) -> dict[str, admin_pb2.ApiKeyInfo]:
        return {info.key_id: info for info in self.admin.ListApiKeys(admin_pb2.ListApiKeysRequest()).keys}

    def set_acl(self, key_id: str, *permissions: str) -> None:
        parts = [text.partition(":") for text in permissions]
        said = [admin_pb2.AclPermission(kind=kind, pattern=pattern) for kind, _, pattern in parts]
        self.admin.SetAcl(admin_pb2.SetAclRequest(key_id=key_id, permissions=said))

    def acl(self, key_id: str) -> list[str]:
        return [f"{one.kind}:{one.pattern}" for one in self._acl(key_id).permissions]

    def is_superadmin(self, key_id: str) -> bool:
        return self._acl(key_id).is_superadmin

    def _acl(self, key_id: str) -> admin_pb2.GetAclResponse:
        answer = self.admin.GetAcl(admin_pb2.GetAclRequest(key_id=key_id))
        assert answer.key_id == key_id
        return answer


@dataclass(frozen=True)
class Served:
    address: str
    bootstrap: str

    def caller(self, key: str | None) -> Caller:
        return Caller(self.address, key)

    @property
    def root(self) -> Caller:
        return self.caller(self.bootstrap)

    def with_acl(self, *permissions: str, name: str = "k", expires_at_ms: int = 0) -> tuple[Caller, str]:
        made = self.root.create(name, expires_at_ms=expires_at_ms)
        self.root.set_acl(made.key_id, *permissions)
        return self.caller(made.key), made.key_id


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("keys") / "data"
    with run_server(
        data, flight=False, grpc=True, settings={"durability": "os", "auth.mode": "keys"}
    ) as server:
        served = Served(server.addresses["grpc"], (data / "bootstrap.key").read_text().strip())
        for queue in ("orders", "orders.eu", "payments", "shop/orders"):
            served.root.queue(queue)
        yield served
        assert server.stop() == 0


def status(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    except fila.RPCError as error:
        return error.code
    return OK


def enqueue(caller: Caller, queue: str) -> Callable[[], object]:
    return lambda: caller.client.enqueue(queue, None, b"x")


def opened(caller: Caller, queue: str) -> Callable[[], object]:
    """Ends as soon as the server says that the stream is open, or why it is not."""

    def open_stream() -> None:
        stream = caller.service.Consume(service_pb2.ConsumeRequest(queue=queue), timeout=PATIENCE_S)
        stream.initial_metadata()
        if stream.is_active():
            stream.cancel()
        elif stream.code() is not OK:
            raise stream

    return open_stream


# The published client


def test_the_published_client_works_with_a_key(served: Served) -> None:
    caller, _ = served.with_acl("produce:orders", "consume:orders")
    sent = caller.client.enqueue("orders", {"shop": "acme"}, b"hello")
    message = next(caller.client.consume("orders"))
    assert (message.id, message.payload, message.headers) == (sent, b"hello", {"shop": "acme"})
    caller.client.ack("orders", message.id)
    with pytest.raises(fila.MessageNotFoundError):
        caller.client.ack("orders", message.id)


def test_the_published_asyncio_client_works_with_a_key(served: Served) -> None:
    served.root.queue("async")
    caller, key_id = served.with_acl("produce:async", "consume:async")

    async def work() -> grpc.StatusCode:
        async with fila.AsyncClient(served.address, api_key=caller.key) as client:
            sent = await client.enqueue("async", None, b"hello")
            async for message in await client.consume("async"):
                assert message.id == sent
                await client.ack("async", message.id)
                break
            await asyncio.to_thread(served.root.revoke, key_id)
            with pytest.raises(fila.RPCError) as error:
                await client.enqueue("async", None, b"hello")
            return error.value.code

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE_S)) is UNAUTHENTICATED


@pytest.mark.parametrize("key", [None, "", "wrong", UNKNOWN_KEY])
def test_a_missing_or_wrong_key_is_refused_at_every_call(served: Served, key: str | None) -> None:
    caller = served.caller(key)
    calls = {
        "Enqueue": enqueue(caller, "orders"),
        "Consume": opened(caller, "orders"),
        "Ack": lambda: caller.client.ack("orders", "01a1e195-9429-7001-8c23-570efea5bcab"),
        "Nack": lambda: caller.client.nack("orders", "01a1e195-9429-7001-8c23-570efea5bcab", "e"),
        **{
            name: lambda name=name: getattr(caller.admin, name)(getattr(admin_pb2, f"{name}Request")())
            for name in admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"].methods_by_name
        },
    }
    assert {name: status(call) for name, call in calls.items()} == dict.fromkeys(calls, UNAUTHENTICATED)


def test_a_key_twice_in_one_call_is_none(served: Served) -> None:
    bearer = ("authorization", f"Bearer {served.bootstrap}")
    stub = admin_pb2_grpc.FilaAdminStub(grpc.insecure_channel(served.address))
    assert status(lambda: stub.ListApiKeys(admin_pb2.ListApiKeysRequest(), metadata=[bearer])) is OK
    assert (
        status(lambda: stub.ListApiKeys(admin_pb2.ListApiKeysRequest(), metadata=[bearer, bearer]))
        is UNAUTHENTICATED
    )


def test_a_revoked_key_is_refused_at_the_next_call_of_a_live_client(served: Served) -> None:
    caller, key_id = served.with_acl("produce:orders")
    assert status(enqueue(caller, "orders")) is OK
    served.root.revoke(key_id)
    assert status(enqueue(caller, "orders")) is UNAUTHENTICATED
    assert status(enqueue(served.caller(caller.key), "orders")) is UNAUTHENTICATED


def test_an_expired_key_is_refused(served: Served) -> None:
    caller, key_id = served.with_acl("produce:orders", expires_at_ms=SystemClock().now_ms() + 1500)
    eventually(lambda: status(enqueue(caller, "orders")) is UNAUTHENTICATED)
    with pytest.raises(fila.RPCError, match="expired"):
        caller.client.enqueue("orders", None, b"x")
    assert key_id in served.root.listed(), "it is still shown, so that somebody sees why"


def test_a_right_that_was_taken_away_is_missing_at_the_next_call(served: Served) -> None:
    caller, key_id = served.with_acl("produce:orders", "produce:payments")
    served.root.set_acl(key_id, "produce:orders")
    assert (status(enqueue(caller, "orders")), status(enqueue(caller, "payments"))) == (OK, FORBIDDEN)


@pytest.mark.parametrize(
    ("permission", "allowed", "refused"),
    [
        ("produce:orders", ["orders"], ["orders.eu", "payments", "shop/orders", "missing"]),
        ("produce:orders.*", ["orders.eu"], ["orders", "payments", "shop/orders", "missing"]),
        ("produce:shop/*", ["shop/orders"], ["orders", "payments", "missing"]),
        ("produce:*", ["orders", "orders.eu", "payments", "shop/orders"], []),
        ("consume:*", [], ["orders", "missing"]),
        ("admin:*", [], ["orders", "missing"]),
    ],
)
def test_a_key_produces_where_its_pattern_says(
    served: Served, permission: str, allowed: list[str], refused: list[str]
) -> None:
    caller, _ = served.with_acl(permission)
    assert {queue: status(enqueue(caller, queue)) for queue in allowed} == dict.fromkeys(allowed, OK)
    assert {queue: status(enqueue(caller, queue)) for queue in refused} == dict.fromkeys(refused, FORBIDDEN)


def test_a_queue_that_is_missing_looks_like_one_that_is_not_yours(served: Served) -> None:
    caller, _ = served.with_acl("produce:orders")

    def words(queue: str) -> str:
        with pytest.raises(fila.RPCError) as error:
            caller.client.enqueue(queue, None, b"x")
        return error.value.message.replace(queue, "QUEUE")

    assert words("payments") == words("missing")
    with pytest.raises(fila.QueueNotFoundError):
        served.root.client.enqueue("missing", None, b"x")


def test_settling_takes_consume_and_is_refused_before_anything_is_looked_up(served: Served) -> None:
    caller, _ = served.with_acl("produce:orders")
    unknown = "01a1e195-9429-7001-8c23-570efea5bcab"
    assert status(lambda: caller.client.ack("orders", unknown)) is FORBIDDEN
    assert status(lambda: caller.client.nack("orders", unknown, "e")) is FORBIDDEN
    assert status(opened(caller, "orders")) is FORBIDDEN
    assert status(opened(caller, "missing")) is FORBIDDEN


# A key that is revoked while a stream is open


class Stream:
    """Reads an open stream of Fila's own stub, so that its end can be seen: the published client ends its
    loop without a word.
    """

    def __init__(self, caller: Caller, queue: str) -> None:
        self.ids: list[str] = []
        self.ended = threading.Event()
        self.call = caller.service.Consume(service_pb2.ConsumeRequest(queue=queue), timeout=PATIENCE_S)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self.call:
                self.ids.append(response.message.id)
        except grpc.RpcError:
            pass
        self.ended.set()

    def status(self) -> grpc.StatusCode:
        assert self.ended.wait(PATIENCE_S)
        return self.call.code()


def depth(served: Served, queue: str) -> tuple[int, int]:
    stats = served.root.admin.GetStats(admin_pb2.GetStatsRequest(queue=queue))
    return stats.depth, stats.in_flight


def test_an_idle_stream_ends_when_its_key_is_revoked_and_gets_nothing_more(served: Served) -> None:
    served.root.queue("idle")
    caller, key_id = served.with_acl("consume:idle")
    stream = Stream(caller, "idle")
    served.root.client.enqueue("idle", None, b"first")
    eventually(lambda: len(stream.ids) == 1)
    served.root.revoke(key_id)
    second = served.root.client.enqueue("idle", None, b"second")
    assert stream.status() is UNAUTHENTICATED
    assert second not in stream.ids
    eventually(lambda: depth(served, "idle") == (1, 1))


@pytest.mark.parametrize("how", ["revoke", "narrow"])
def test_what_a_stream_had_fetched_ahead_goes_back_when_its_key_is_over(served: Served, how: str) -> None:
    """A client that does not read stops the server's writing; what waits behind it is leased and has not
    left.
    """
    queue = f"ahead-{how}"
    served.root.queue(queue)
    # Far more than gRPC lets be under way to a client that does not read.
    total = 400
    for _ in range(total):
        served.root.client.enqueue(queue, None, b"x" * 64 * 1024)
    caller, key_id = served.with_acl(f"consume:{queue}")
    call = caller.service.Consume(service_pb2.ConsumeRequest(queue=queue), timeout=PATIENCE_S)
    seen = [next(call).message.id]
    eventually(lambda: depth(served, queue)[1] > 1)
    if how == "revoke":
        served.root.revoke(key_id)
    else:
        served.root.set_acl(key_id, "produce:*")
    with pytest.raises(grpc.RpcError):
        seen.extend(response.message.id for response in call)
    assert call.code() is (UNAUTHENTICATED if how == "revoke" else FORBIDDEN)
    assert len(seen) < total, "the client's window had room for everything"
    # What was sent stays leased until it is settled or expires; all else is there again.
    eventually(lambda: depth(served, queue) == (total - len(seen), len(seen)))
    rest = Stream(served.root, queue)
    eventually(lambda: len(rest.ids) == total - len(seen))
    assert not set(rest.ids) & set(seen)
    rest.call.cancel()


# CreateApiKey, RevokeApiKey, ListApiKeys, SetAcl, GetAcl


def test_a_new_key_may_do_nothing(served: Served) -> None:
    made = served.root.create("new")
    assert (made.is_superadmin, served.root.acl(made.key_id)) == (False, [])
    assert status(enqueue(served.caller(made.key), "orders")) is FORBIDDEN


def test_a_key_is_listed_with_what_was_asked_for_and_without_its_secret(served: Served) -> None:
    at = SystemClock().now_ms() + 86_400_000
    made = served.root.create("listed", expires_at_ms=at)
    info = served.root.listed()[made.key_id]
    assert (info.name, info.expires_at_ms, info.is_superadmin) == ("listed", at, False)
    assert abs(info.created_at_ms - SystemClock().now_ms()) < PATIENCE_S * 1000
    assert (
        made.key.encode()
        not in served.root.admin.ListApiKeys(admin_pb2.ListApiKeysRequest()).SerializeToString()
    )
    served.root.revoke(made.key_id)
    assert made.key_id not in served.root.listed()


def test_a_superadmin_may_do_everything_and_only_superadmins_make_one(served: Served) -> None:
    made = served.root.create("second", superadmin=True)
    assert made.is_superadmin
    assert served.root.listed()[made.key_id].is_superadmin
    assert served.root.is_superadmin(made.key_id)
    assert served.root.acl(made.key_id) == [f"{kind}:*" for kind in ALL_KINDS]
    second = served.caller(made.key)
    assert status(lambda: second.queue("made-by-second")) is OK
    admin, _ = served.with_acl("admin:*", "produce:*", "consume:*")
    assert status(lambda: admin.create("third", superadmin=True)) is FORBIDDEN
    assert status(lambda: admin.create("third")) is OK
    second.revoke(made.key_id)
    assert status(lambda: second.queue("made-by-none")) is UNAUTHENTICATED


def test_what_is_set_is_what_is_shown_and_shown_again_after_it_is_set_again(served: Served) -> None:
    _, key_id = served.with_acl(
        "produce:orders",
        "consume:orders.*",
        "admin:shop/*",
        "redrive:orders",
        "read-payload:*",
        "produce:orders",
    )
    shown = served.root.acl(key_id)
    assert shown == ["admin:shop/*", "consume:orders.*", "produce:orders", "read-payload:*", "redrive:orders"]
    served.root.set_acl(key_id, *shown)
    assert served.root.acl(key_id) == shown
    served.root.set_acl(key_id, "produce:orders")
    assert served.root.acl(key_id) == ["produce:orders"], "nothing stays that the list does not say"
    served.root.set_acl(key_id)
    assert served.root.acl(key_id) == []


def test_a_superadmin_whose_list_is_set_has_what_it_says_and_no_more(served: Served) -> None:
    made = served.root.create("was mighty", superadmin=True)
    served.root.set_acl(made.key_id, "produce:orders")
    assert not served.root.is_superadmin(made.key_id)
    assert status(enqueue(served.caller(made.key), "orders")) is OK
    assert status(lambda: served.caller(made.key).queue("no")) is FORBIDDEN


def test_a_scoped_admin_hands_on_what_it_has_where_it_is_admin(served: Served) -> None:
    admin, _ = served.with_acl("admin:orders.*", "produce:orders.*", "consume:orders")
    made = admin.create("helper")
    admin.set_acl(made.key_id, "produce:orders.eu")
    assert status(enqueue(served.caller(made.key), "orders.eu")) is OK
    for beyond in (
        "produce:orders",
        "consume:orders",
        "consume:orders.eu",
        "produce:payments",
        "produce:*",
        "admin:*",
        "redrive:orders.eu",
    ):
        assert status(lambda beyond=beyond: admin.set_acl(made.key_id, beyond)) is FORBIDDEN, beyond
    assert admin.acl(made.key_id) == ["produce:orders.eu"]


def test_a_key_beyond_ones_own_rights_is_one_that_is_not_there(served: Served) -> None:
    admin, _ = served.with_acl("admin:orders", "produce:orders")
    _, other = served.with_acl("produce:payments")
    unknown = "aaaaaaaaaaaa"
    for key_id in (other, unknown):
        assert status(lambda key_id=key_id: admin.acl(key_id)) is NOT_FOUND
        assert status(lambda key_id=key_id: admin.set_acl(key_id)) is NOT_FOUND
        assert status(lambda key_id=key_id: admin.revoke(key_id)) is NOT_FOUND
    assert other not in admin.listed()
    assert served.root.acl(other) == ["produce:payments"]


def test_a_key_without_admin_makes_none(served: Served) -> None:
    caller, key_id = served.with_acl("produce:*", "consume:*")
    assert status(lambda: caller.create("mine")) is FORBIDDEN
    assert caller.acl(key_id) == ["consume:*", "produce:*"], "what it has itself is no secret from it"
    assert list(caller.listed()) == [key_id]


def test_admin_of_a_pattern_makes_queues_inside_it(served: Served) -> None:
    admin, _ = served.with_acl("admin:made.*")
    assert status(lambda: admin.queue("made.us")) is OK
    assert status(lambda: admin.queue("made")) is FORBIDDEN
    assert status(lambda: admin.queue("payments")) is FORBIDDEN, "there is one, and that is not told"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda root: root.create(""), INVALID),
        (lambda root: root.create("k", expires_at_ms=1), INVALID),
        (lambda root: root.create("k", expires_at_ms=(1 << 64) - 1), INVALID),
        (lambda root: root.create("x" * 201), INVALID),
        (lambda root: root.revoke(""), INVALID),
        (lambda root: root.revoke("aaaaaaaaaaaa"), NOT_FOUND),
        (lambda root: root.acl(""), INVALID),
        (lambda root: root.acl("aaaaaaaaaaaa"), NOT_FOUND),
        (lambda root: root.set_acl(""), INVALID),
        (lambda root: root.set_acl("aaaaaaaaaaaa", "produce:x"), NOT_FOUND),
        (lambda root: root.set_acl("aaaaaaaaaaaa", "write:x"), INVALID),
        (lambda root: root.set_acl("aaaaaaaaaaaa", "produce:a b"), INVALID),
        (lambda root: root.set_acl("aaaaaaaaaaaa", "produce:"), INVALID),
        (lambda root: root.set_acl("aaaaaaaaaaaa", "produce:x.dlq"), INVALID),
        (lambda root: root.set_acl("aaaaaaaaaaaa", *(f"produce:q{n}" for n in range(201))), INVALID),
    ],
)
def test_the_status_of_each_refusal_is_the_one_of_fila(
    served: Served, call: Callable[[Caller], object], expected: grpc.StatusCode
) -> None:
    assert status(lambda: call(served.root)) is expected


def test_keys_can_be_prepared_before_they_are_asked_for(tmp_path: Path) -> None:
    with run_server(tmp_path / "data", flight=False, grpc=True, settings={"durability": "os"}) as server:
        nobody = Caller(server.addresses["grpc"], None)
        nobody.queue("orders")
        made = nobody.create("early")
        nobody.set_acl(made.key_id, "produce:orders")
        server.stop()
    with run_server(
        tmp_path / "data", flight=False, grpc=True, settings={"durability": "os", "auth.mode": "keys"}
    ) as server:
        assert status(enqueue(Caller(server.addresses["grpc"], made.key), "orders")) is OK
        assert status(enqueue(Caller(server.addresses["grpc"], None), "orders")) is UNAUTHENTICATED
