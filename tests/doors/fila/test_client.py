"""The published client, unmodified, against a server in another process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fila
import grpc
import pytest

from tests.doors.fila.servers import PATIENCE_S, Admin, Reader, Server, eventually

BY_TENANT = 'function on_enqueue(msg) return {fairness_key = msg.headers["tenant"], weight = tonumber(msg.headers["weight"]) or 1} end'
THIRD_TIME_DEAD = 'function on_failure(msg) if msg.attempts >= 3 then return {action = "dlq"} end return {action = "retry"} end'


def test_a_message_goes_in_comes_out_as_it_was_and_is_gone_once_acked(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name)
    message_id = client.enqueue(name, {"tenant": "acme", "k": "ü"}, b"\x00payload")
    with Reader(server.address, name) as reader:
        message = reader.next()
        assert message == fila.ConsumeMessage(
            message_id, {"tenant": "acme", "k": "ü"}, b"\x00payload", "default", 0, name
        )
        client.ack(name, message_id)
        with pytest.raises(fila.MessageNotFoundError):
            client.ack(name, message_id)
        with pytest.raises(fila.MessageNotFoundError):
            client.nack(name, message_id, "too late")
    stats = admin.stats(name)
    assert (stats.depth, stats.in_flight) == (0, 0)


def test_a_nacked_message_comes_again_on_the_same_stream_with_its_count(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name)
    message_id = client.enqueue(name, None, b"again")
    with Reader(server.address, name) as reader:
        for attempts in (0, 1, 2):
            message = reader.next()
            assert (message.id, message.attempt_count) == (message_id, attempts)
            client.nack(name, message_id, "not yet")
        client.ack(name, reader.next().id)


def test_an_ack_of_a_dead_message_says_that_it_is_dead_and_where(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name, on_failure='function on_failure(msg) return {action = "dlq"} end')
    message_id = client.enqueue(name, None, b"")
    with Reader(server.address, name) as reader:
        assert reader.next().id == message_id
        client.nack(name, message_id, "never")
        with pytest.raises(fila.MessageNotFoundError, match=f"it is dead, in queue '{name}.dlq'"):
            client.ack(name, message_id)


def test_an_unknown_queue_is_an_error_for_a_producer_and_the_end_of_the_stream_for_a_consumer(
    server: Server, client: fila.Client
) -> None:
    with pytest.raises(fila.QueueNotFoundError):
        client.enqueue("no-such-queue", None, b"")
    with Reader(server.address, "no-such-queue") as reader:
        reader.wait_for_end()
    with pytest.raises(fila.MessageNotFoundError):
        client.ack("no-such-queue", "01a1e195-9429-7001-8c23-570efea5bcab")


def test_the_asynchronous_client_does_the_same(server: Server, admin: Admin, name: str) -> None:
    admin.create(name)

    async def lifecycle() -> list[tuple[str, int]]:
        seen = []
        async with fila.AsyncClient(server.address) as client:
            sent = await asyncio.gather(*(client.enqueue(name, None, bytes([n])) for n in range(20)))
            messages = await client.consume(name)
            first = await anext(messages)
            await client.nack(name, first.id, "once more")
            seen.append((first.id, first.attempt_count))
            async for message in messages:
                seen.append((message.id, message.attempt_count))
                await client.ack(name, message.id)
                if len(seen) == 21:
                    break
            with pytest.raises(fila.QueueNotFoundError):
                await client.enqueue("no-such-queue", None, b"")
            with pytest.raises(fila.MessageNotFoundError):
                await client.ack(name, first.id)
        assert {message_id for message_id, _ in seen} == set(sent)
        return seen

    seen = asyncio.run(asyncio.wait_for(lifecycle(), PATIENCE_S))
    assert [attempts for message_id, attempts in seen if message_id == seen[0][0]] == [0, 1]


def test_on_enqueue_names_the_fairness_key(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name, on_enqueue=BY_TENANT)
    client.enqueue(name, {"tenant": "acme"}, b"")
    with Reader(server.address, name) as reader:
        assert reader.next().fairness_key == "acme"


def test_three_failures_make_a_dead_letter_that_a_redrive_brings_back_with_a_new_count(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name, on_failure=THIRD_TIME_DEAD)
    message_id = client.enqueue(name, {"k": "v"}, b"poison")
    with Reader(server.address, name) as reader:
        for attempts in (0, 1, 2):
            assert reader.next().attempt_count == attempts
            client.nack(name, message_id, f"failure {attempts}")
        assert admin.queues()[f"{name}.dlq"].depth == 1
        assert admin.redrive(f"{name}.dlq") == 1
        alive = reader.next()
        assert (alive.id, alive.attempt_count, alive.queue, alive.payload) == (message_id, 0, name, b"poison")
        assert admin.redrive(f"{name}.dlq") == 0


def test_dead_letters_are_consumed_like_any_other_message(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name, on_failure='function on_failure(msg) return {action = "dlq"} end')
    message_id = client.enqueue(name, {"k": "v"}, b"poison")
    with Reader(server.address, name) as reader, Reader(server.address, f"{name}.dlq") as dead_letters:
        client.nack(name, reader.next().id, "no hope")
        dead = dead_letters.next()
        assert (dead.id, dead.payload, dead.headers, dead.queue) == (
            message_id,
            b"poison",
            {"k": "v"},
            f"{name}.dlq",
        )
        with pytest.raises(fila.MessageNotFoundError):
            client.ack(name, message_id)  # it is not in that queue any more
        client.ack(f"{name}.dlq", message_id)
    assert admin.stats(f"{name}.dlq").in_flight == 0


def test_weights_share_a_queue(server: Server, admin: Admin, client: fila.Client, name: str) -> None:
    admin.create(name, on_enqueue=BY_TENANT)
    with ThreadPoolExecutor(8) as producers:
        tenants = [
            {"tenant": tenant, "weight": weight}
            for tenant, weight in (("small", "1"), ("big", "3"))
            for _ in range(100)
        ]
        list(producers.map(lambda headers: client.enqueue(name, headers, b""), tenants))
    with Reader(server.address, name) as reader:
        big = [message.fairness_key for message in reader.take(60)].count("big")
    assert 36 <= big <= 54  # 45 is their share


def test_a_throttle_lets_others_pass(server: Server, admin: Admin, client: fila.Client, name: str) -> None:
    admin.create(
        name,
        on_enqueue='function on_enqueue(msg) return {throttle_keys = {"provider-" .. msg.headers["provider"]}} end',
    )
    admin.set("throttle.provider-slow", "0.001,1")
    for provider in ("slow", "slow", "slow", "fast", "fast", "fast"):
        client.enqueue(name, {"provider": provider}, b"")
    with Reader(server.address, name) as reader:
        assert sorted(message.headers["provider"] for message in reader.take(4)) == [
            "fast",
            "fast",
            "fast",
            "slow",
        ]
        admin.set("throttle.provider-slow", "")
        assert [message.headers["provider"] for message in reader.take(2)] == ["slow", "slow"]


def test_what_a_consumer_took_with_it_comes_again_when_its_lease_is_over_and_counts_as_a_failure(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name, timeout_ms=1000)
    message_id = client.enqueue(name, None, b"")
    with Reader(server.address, name) as leaves:
        assert leaves.next().attempt_count == 0
    with Reader(server.address, name) as reader:
        message = reader.next()
        assert message.id == message_id
        assert message.attempt_count >= 1


def test_a_killed_server_has_lost_nothing_that_it_confirmed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    admin = Admin(server.address)
    admin.create("orders")
    with fila.Client(server.address) as client:
        sent = [client.enqueue("orders", None, bytes([n])) for n in range(5)]
    admin.channel.close()
    server.kill()
    again = Server(tmp_path, port=server.port)
    try:
        with Reader(again.address, "orders") as reader:
            messages = reader.take(5)
            assert [(message.id, message.payload) for message in messages] == [
                (sent[n], bytes([n])) for n in range(5)
            ]
            for message in messages:
                reader.client.ack("orders", message.id)
    finally:
        assert again.stop() == 0


def test_a_consumer_that_does_not_read_holds_up_neither_its_own_producer_nor_other_consumers(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name, timeout_ms=600_000)  # so that nothing comes back by itself
    with ThreadPoolExecutor(8) as producers:
        list(producers.map(lambda _: client.enqueue(name, None, b"x" * 20_000), range(1000)))
    stalled = client.consume(name)
    next(stalled)
    sent: list[str] = []
    producer = threading.Thread(target=lambda: sent.append(client.enqueue(name, None, b"last")), daemon=True)
    producer.start()
    producer.join(PATIENCE_S)
    assert len(sent) == 1
    with Reader(server.address, name) as reader:
        # The stalled one holds what its connection and its stream have room for; the rest is everybody's.
        while reader.next().payload != b"last":
            pass


def test_a_client_may_drop_a_stream_and_open_another_and_still_ack_what_the_first_brought(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.create(name)
    sent = [client.enqueue(name, None, b"") for _ in range(2)]
    reader = Reader(server.address, name)
    first = reader.take(2)
    assert [message.id for message in first] == sent
    later = client.enqueue(name, None, b"later")
    assert reader.next().id == later
    reader.close()
    with Reader(server.address, name) as again:
        last = client.enqueue(name, None, b"last")
        assert again.next().id == last
        for message in first:
            again.client.ack(name, message.id)


def test_active_consumers_fall_back_when_a_client_leaves(server: Server, admin: Admin, name: str) -> None:
    admin.create(name)
    with Reader(server.address, name):
        eventually(lambda: admin.stats(name).active_consumers == 1)
        assert admin.queues()[name].active_consumers == 1
    eventually(lambda: admin.stats(name).active_consumers == 0)


def test_a_call_with_an_api_key_is_served_while_there_are_none(
    server: Server, admin: Admin, name: str
) -> None:
    admin.create(name)
    with fila.Client(server.address, api_key="whatever") as client:
        assert client.enqueue(name, None, b"")


def test_the_client_sees_the_status_of_what_is_not_its_queue(client: fila.Client) -> None:
    with pytest.raises(fila.RPCError) as caught:
        client.enqueue("", None, b"")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
