"""The door that speaks Redis, from a socket: both forms of commands, order, waits, and what is put back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import redis

from fairlead import Broker, Complete, Fail, NewMessage, errors
from fairlead.server.resp.door import RespDoor
from fairlead.testing.engine import waiting_claims
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersClaim, ConsumersRead
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Stats
from fairlead.verbs.settle import Settle
from fairlead.wire.packed import decode_answer
from tests.doors.resp.wire import Wire, code_of, pack, packed, wires
from tests.integration.world import wait_until


def test_a_message_goes_in_and_out_in_plain_words(wire: Wire, queue: str) -> None:
    message_id = wire.ask(
        "FL.ENQUEUE", queue, "payload", "KEY", "acme", "HEADER", "tenant", "a", "HEADER", "b", "c"
    )
    wire.ask("HELLO", "3")
    [delivery] = wire.ask("fl.claim", queue, "LIMIT", 5)
    assert delivery[b"id"] == message_id
    assert delivery[b"payload"] == b"payload"
    assert delivery[b"fairness_key"] == b"acme"
    assert delivery[b"headers"] == {b"tenant": b"a", b"b": b"c"}
    [result] = wire.ask("FL.SETTLE", "COMPLETE", message_id, delivery[b"lease"])
    assert result == {b"id": message_id, b"outcome": b"completed"}
    assert wire.ask("FL.CLAIM", queue) == []


def test_a_message_goes_in_and_out_packed(wire: Wire, queue: str) -> None:
    ids = wire.do(EnqueueMany(queue, [NewMessage(b"1", {"h": "v"}, "k"), NewMessage(b"2")]))
    found = wire.do(Claim(queue, 10))
    assert [one.id for one in found] == ids
    assert (found[0].payload, found[0].headers, found[0].fairness_key) == (b"1", {"h": "v"}, "k")
    settled = wire.do(Settle([Complete(found[0]), Fail(found[1], "no", dead=True)]))
    assert [one.outcome for one in settled] == ["completed", "dead"]


def test_an_exchange_is_one_command(wire: Wire, queue: str) -> None:
    wire.do(Enqueue(queue, b"1"))
    [first] = wire.do(Claim(queue))
    results, message_id, found = wire.do(
        Exchange([Settle([Complete(first)]), Enqueue(queue, b"2"), Claim(queue)])
    )
    assert results[0].outcome == "completed"
    assert [one.id for one in found] == [message_id]


def test_maps_are_flat_arrays_in_resp2(wire: Wire, queue: str) -> None:
    reply = wire.ask("FL.STATS", queue)
    assert dict(zip(reply[::2], reply[1::2], strict=True))[b"ready"] == 0


def test_redis_py_speaks_to_it_unchanged(door: RespDoor, queue: str) -> None:
    for protocol in (2, 3):
        client = redis.Redis(port=int(door.address.rpartition(":")[2]), protocol=protocol, client_name="me")
        assert client.ping()
        assert client.echo("x") == b"x"
        message_id = client.execute_command("FL.ENQUEUE", queue, "p")
        assert len(client.execute_command("FL.CLAIM", queue)) == 1
        pipeline = client.pipeline(transaction=False)
        for _ in range(3):
            pipeline.execute_command("FL.ENQUEUE", queue, "p")
        ids = pipeline.execute()
        assert len({message_id, *ids}) == 4
        with pytest.raises(redis.ResponseError, match=r"^QUEUE_NOT_FOUND "):
            client.execute_command("FL.STATS", "nowhere")
        with pytest.raises(redis.ResponseError, match=r"FL\.EXCHANGE"):
            client.pipeline(transaction=True).ping().execute()
        assert client.client_getname() in ("me", b"me")
        assert client.client_id() > 0
        assert client.acl_whoami() in ("default", b"default")
        assert client.select(0)
        assert client.info()["redis_mode"] == "standalone"
        assert client.command_count() > 70
        client.close()


def test_it_listens_on_a_unix_socket_too(door: RespDoor, socket_path: Path, queue: str) -> None:
    assert socket_path.stat().st_mode & 0o777 == 0o600
    wire = Wire(path=str(socket_path))
    assert wire.do(Enqueue(queue, b"1"))
    assert b"addr=unix:" in wire.ask("CLIENT", "INFO")
    wire.close()


def test_errors_have_the_stable_code_first_and_are_made_anew_by_our_client(wire: Wire) -> None:
    assert code_of(wire.ask("FL.STATS", "nowhere")) == "QUEUE_NOT_FOUND"
    with pytest.raises(errors.QueueNotFound) as refused:
        wire.do(Stats("nowhere"))
    assert refused.value.fields == errors.QueueNotFound("nowhere").fields
    with pytest.raises(errors.InvalidRequest) as wrong:
        wire.do(Claim("q", 0))
    assert (wrong.value.field, wrong.value.expected) == ("limit", "a whole number from 1 to 100000")


def test_replies_come_in_the_order_of_commands(wire: Wire, queue: str) -> None:
    """Some join a turn, some run in a thread, some wait for a sync, some are answered at once."""
    wire.send(
        b"".join(
            [
                pack("FL.ENQUEUE", queue, "1"),
                pack("PING", "a"),
                pack("FL.STATS", queue),
                pack("FL.CLAIM", queue, "WAIT", "50ms", "LIMIT", 2),
                pack("FL.CLAIM", queue, "WAIT", "50ms"),
                pack("PING", "b"),
                pack("FL.NOTHING"),
                pack("FL.ENQUEUE", queue, "2"),
                pack("FL.CLAIM", queue),
            ]
        )
    )
    replies = wire.read_many(9)
    assert len(replies[0]) == 36
    assert replies[1] == b"a"
    assert replies[2][replies[2].index(b"ready") + 1] == 1
    assert [len(replies[3]), len(replies[4]), len(replies[8])] == [1, 0, 1]
    assert replies[5] == b"b"
    assert code_of(replies[6]) == "INVALID_REQUEST"


def test_a_pipeline_of_100_000_commands_is_answered_in_order(wire: Wire, queue: str) -> None:
    count = 100_000
    sender = threading.Thread(
        target=lambda: wire.send(
            b"".join([pack("PING", n) if n % 10 else pack("FL.ENQUEUE", queue, n) for n in range(count)])
        )
    )
    sender.start()
    replies = wire.read_many(count)
    sender.join()
    assert [int(one) for n, one in enumerate(replies) if n % 10] == [n for n in range(count) if n % 10]
    assert len({one for n, one in enumerate(replies) if n % 10 == 0}) == count // 10
    found = wire.do(Claim(queue, 100))
    assert [one.payload for one in found] == [b"%d" % n for n in range(0, 1000, 10)]


def test_commands_of_a_pipeline_share_a_write(wire: Wire, queue: str, store: FaultyStore) -> None:
    before = store.calls["write"]
    wire.send(b"".join([packed(Enqueue(queue, b"%d" % n)) for n in range(100)]))
    wire.read_many(100)
    assert store.calls["write"] - before < 20


def test_a_claim_that_waits_is_answered_by_an_enqueue_of_another_connection(
    door: RespDoor, broker: Broker, queue: str
) -> None:
    with wires(door.address, 2) as (consumer, producer):
        consumer.send(packed(Claim(queue, wait="30s")))
        wait_until(lambda: waiting_claims(broker, queue) == 1)
        producer.do(Enqueue(queue, b"1"))
        assert consumer.read() is not None
        # And by one that comes from elsewhere: another door, a timer.
        consumer.send(packed(Claim(queue, wait="30s")))
        wait_until(lambda: waiting_claims(broker, queue) == 1)
        broker.enqueue(queue, b"2")
        assert b"2" in consumer.read()


def test_many_claims_wait_without_threads(door: RespDoor, broker: Broker, queue: str) -> None:
    before = threading.active_count()
    with wires(door.address, 500) as consumers:
        for one in consumers:
            one.send(packed(Claim(queue, wait="30s")))
        wait_until(lambda: waiting_claims(broker, queue) == 500)
        assert threading.active_count() <= before
        broker.enqueue_many(queue, [NewMessage(b"%d" % n) for n in range(500)])
        found = [one for wire in consumers for one in decode_answer(Claim(queue), wire.read())[0]]
        assert {one.payload for one in found} == {b"%d" % n for n in range(500)}
    assert broker.stats(queue).leased == 500


def test_a_claim_for_a_numbered_consumer_waits_without_a_thread(
    wire: Wire, broker: Broker, queue: str
) -> None:
    generation = broker.consumers.register("c", queue).generation
    wire.send(packed(ConsumersClaim("c", queue, generation, 1, wait="30s")))
    wait_until(lambda: waiting_claims(broker, queue) == 1)
    broker.enqueue(queue, b"1")
    wire.read()
    [page] = wire.do(ConsumersRead("c", queue, generation, 1))
    assert [one.payload for one in page] == [b"1"]


def test_a_claim_that_waits_goes_with_its_connection(door: RespDoor, broker: Broker, queue: str) -> None:
    with wires(door.address, 1) as (gone,):
        gone.send(packed(Claim(queue, wait="30s")))
        wait_until(lambda: waiting_claims(broker, queue) == 1)
    wait_until(lambda: waiting_claims(broker, queue) == 0)
    broker.enqueue(queue, b"1")
    assert broker.stats(queue).ready == 1


@pytest.mark.parametrize(
    "behind",
    [pack("PING"), pack("PING") * 50, pack("FL.CLAIM", "no-queue", "WAIT", "30s")],
    ids=["a command", "many", "a claim"],
)
def test_a_claim_with_commands_behind_it_goes_with_its_connection(
    door: RespDoor, wire: Wire, broker: Broker, queue: str, behind: bytes
) -> None:
    with wires(door.address, 1) as (gone,):
        gone.send(packed(Claim(queue, wait="30s")))
        wait_until(lambda: waiting_claims(broker, queue) == 1)
        gone.send(behind)
        # Now the door has read it.
        wire.ask("PING")
    wait_until(lambda: waiting_claims(broker, queue) == 0)


def test_a_client_may_close_its_side_and_read_the_rest(wire: Wire, queue: str) -> None:
    wire.send(
        pack("FL.ENQUEUE", queue, "1") + pack("FL.CLAIM", queue) + pack("FL.CLAIM", queue, "WAIT", "30s")
    )
    wire.socket.shutdown(1)
    replies = wire.read_many(3)
    assert [len(replies[1]), replies[2]] == [1, []]
    assert wire.is_closed()


def test_deliveries_that_could_not_be_written_return_to_their_places(
    door: RespDoor, broker: Broker, queue: str
) -> None:
    broker.enqueue_many(queue, [NewMessage(b"x" * (1 << 20)) for _ in range(16)])
    with wires(door.address, 1) as (gone,):
        gone.send(packed(Claim(queue, 16)))
        wait_until(lambda: broker.stats(queue).leased == 16)
    wait_until(lambda: broker.stats(queue).ready == 16)
    assert {one.attempts for one in broker.claim(queue, limit=16)} == {0}


def test_a_lost_transaction_is_told_to_all_who_joined(
    wire: Wire, queue: str, store: FaultyStore, broker: Broker
) -> None:
    store.arm(1, "fail", only=("write",))
    wire.send(b"".join([packed(Enqueue(queue, b"%d" % n)) for n in range(10)]))
    replies = wire.read_many(10)
    lost = [one for one in replies if not isinstance(one, bytes)]
    assert lost
    assert {code_of(one) for one in lost} <= {"UNAVAILABLE", "STORE_FULL"}
    assert broker.stats(queue).ready == len(replies) - len(lost)
    assert wire.do(Enqueue(queue, b"again"))


def test_a_connection_says_what_it_is(wire: Wire, door: RespDoor) -> None:
    hello = wire.ask("HELLO", "3", "SETNAME", "mine")
    assert (hello[b"server"], hello[b"proto"]) == (b"fairlead", 3)
    assert wire.ask("CLIENT", "GETNAME") == b"mine"
    assert wire.ask("CLIENT", "SETINFO", "LIB-NAME", "x") == b"OK"
    assert wire.ask("RESET") == b"RESET"
    assert wire.ask("CLIENT", "GETNAME") == b""
    assert wire.ask("QUIT") == b"OK"
    assert wire.is_closed()


def test_help_and_docs_come_from_the_table(wire: Wire) -> None:
    [line] = wire.ask("FL.HELP", "ack")
    assert line.startswith(b"FL.ACK queue message_id: Complete a message")
    assert len(wire.ask("FL.HELP")) > 70
    wire.ask("HELLO", "3")
    [(name, docs)] = wire.ask("COMMAND", "DOCS", "fl.claim").items()
    assert (name, docs[b"group"]) == (b"FL.CLAIM", b"fairlead")
    assert b"FL.ENQUEUE" in wire.ask("COMMAND", "LIST")
    assert wire.ask("COMMAND", "INFO", "fl.ack")[0][0] == b"fl.ack"
    assert len(wire.ask("COMMAND")) > 70
