from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

import fairlead.aio
from fairlead import Complete, Delivery, Extend, NewMessage, Release, Start, errors
from fairlead.client.async_client import AsyncClient
from fairlead.testing.engine import is_started, waiting_claims
from fairlead.testing.sizes import size
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from tests.client.scene import PATIENCE_S, Scene, heartbeat_of

Work = Callable[[AsyncClient], Awaitable[Any]]


def run(scene: Scene, work: Work) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(PATIENCE_S), connected(scene) as client:
            return await work(client)

    return asyncio.run(main())


@asynccontextmanager
async def connected(scene: Scene) -> AsyncIterator[AsyncClient]:
    async with await fairlead.aio.connect(scene.address, consumer="tester") as client:
        yield client


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_the_life_of_a_message(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        message_id = await client.enqueue("q", b"work", headers={"a": "b"})
        (delivery,) = await client.claim("q", wait="1s")
        assert (delivery.id, delivery.headers) == (message_id, {"a": "b"})
        results = await client.settle([Extend(delivery, "1m"), Complete(delivery)])
        assert [result.outcome for result in results] == ["extended", "completed"]
        assert (await client.stats("q")).leased == 0
        await client.config.set("a", 1)
        assert await client.config.get("a") == "1"
        assert await client.config.list() == {"a": "1"}
        await client.config.delete("a")
        (message_id, deliveries) = await client.exchange([Enqueue("q", b"x"), Claim("q")])
        assert [(found.id, found.payload) for found in deliveries] == [(message_id, b"x")]
        assert (await client.open_session("mine")).last == 0
        ids = [await client.once(Enqueue("q", b"y"), session="mine", number=1) for _ in range(2)]
        assert ids == [scene.broker.peek("q")[0].id] * 2

    run(scene, work)


def test_errors_are_the_engines(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        for call in (client.enqueue("nowhere", b""), client.claim("nowhere"), client.stats("nowhere")):
            with pytest.raises(errors.QueueNotFound):
                await call
        with pytest.raises(errors.InvalidRequest):
            await client.enqueue("q", "text")  # type: ignore[arg-type]

    run(scene, work)


def test_only_the_guilty_task_gets_the_error(scene: Scene) -> None:
    async def work(client: AsyncClient) -> list[Any]:
        calls = [client.enqueue("nowhere" if at % 7 == 3 else "q", b"") for at in range(50)]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = run(scene, work)
    assert [isinstance(outcome, errors.QueueNotFound) for outcome in outcomes] == [
        at % 7 == 3 for at in range(50)
    ]
    assert scene.counts()[0] == 43


def test_the_event_loop_is_never_blocked_by_a_claim_that_waits(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        claims = [asyncio.create_task(client.claim("q", wait="50s")) for _ in range(50)]
        await until(lambda: waiting_claims(scene.broker, "q") == 50)
        await client.enqueue_many("q", [NewMessage(b"") for _ in range(50)])
        assert [len(found) for found in await asyncio.gather(*claims)] == [1] * 50

    run(scene, work)


def test_a_cancelled_claim_releases_what_still_arrives_for_it(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        claim = asyncio.create_task(client.claim("q", wait="50s"))
        await until(lambda: waiting_claims(scene.broker, "q") == 1)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        await client.enqueue("q", b"")
        await until(lambda: scene.broker.peek("q") and scene.broker.peek("q")[0].deliveries == 1)
        assert scene.counts() == (1, 0, 0, 0)

    run(scene, work)


def test_a_cancelled_settle_that_was_not_sent_keeps_its_lease_alive(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        await client.enqueue("q", b"")
        (delivery,) = await client.claim("q")
        settle = asyncio.ensure_future(client.settle([Complete(delivery)]))
        await asyncio.sleep(0)
        settle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settle
        await client.stats("q")
        assert scene.counts() == (0, 0, 1, 0)
        assert heartbeat_of(client).holds(delivery.message.id, delivery.claim_id)

    run(scene, work)


def test_a_loop_gets_every_message_in_order(scene: Scene) -> None:
    ids = scene.broker.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(50)])

    async def work(client: AsyncClient) -> list[str]:
        seen = []
        async for delivery in client.consume("q", prefetch=10):
            seen.append(delivery.id)
            await client.settle([Complete(delivery)])
            if len(seen) == 50:
                break
        return seen

    assert run(scene, work) == ids


def test_leaving_a_loop_gives_the_rest_back_in_order(scene: Scene) -> None:
    scene.broker.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(10)])

    async def work(client: AsyncClient) -> None:
        async for delivery in client.consume("q", prefetch=5):
            await client.settle([Complete(delivery)])
            break
        await until(lambda: scene.counts() == (9, 0, 0, 0))

    run(scene, work)
    assert scene.payloads() == [b"%d" % at for at in range(1, 10)]


def test_closing_a_loop_gives_the_rest_back_before_it_returns(scene: Scene) -> None:
    scene.broker.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(10)])

    async def work(client: AsyncClient) -> None:
        async with client.consume("q", prefetch=5) as deliveries:
            await anext(deliveries)
        assert scene.counts() == (9, 0, 1, 0)
        with pytest.raises(StopAsyncIteration):
            await anext(deliveries)

    run(scene, work)


def test_a_task_cancelled_while_it_waits_for_a_delivery_loses_none(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        deliveries = client.consume("q")
        waiting = asyncio.ensure_future(anext(deliveries))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.enqueue("q", b"still there")
        delivery = await anext(deliveries)
        assert delivery.payload == b"still there"
        await deliveries.aclose()

    run(scene, work)


def test_several_tasks_share_one_loop(scene: Scene) -> None:
    ids = scene.broker.enqueue_many("q", [NewMessage(b"") for _ in range(100)])

    async def work(client: AsyncClient) -> list[str]:
        seen: list[str] = []
        deliveries = client.consume("q", prefetch=20)

        async def worker() -> None:
            async for delivery in deliveries:
                await client.settle([Complete(delivery)])
                seen.append(delivery.id)

        tasks = [asyncio.create_task(worker()) for _ in range(5)]
        await until(lambda: len(seen) == 100)
        await deliveries.aclose()
        await asyncio.gather(*tasks)
        return seen

    assert sorted(run(scene, work)) == sorted(ids)


def test_a_loop_over_a_queue_that_is_not_there_says_so(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        with pytest.raises(errors.QueueNotFound):
            await anext(client.consume("nowhere"))

    run(scene, work)


def test_a_closed_client_says_so(scene: Scene) -> None:
    async def main() -> None:
        client = await fairlead.aio.connect(scene.address)
        await client.close()
        for call in (client.enqueue("q", b""), client.claim("q"), client.settle([]), client.stats("q")):
            with pytest.raises(errors.ClientClosed):
                await call

    asyncio.run(main())


def test_a_lost_lease_is_known_to_both_faces(scene: Scene) -> None:
    async def work(client: AsyncClient) -> tuple[bool, bool]:
        message_id = await client.enqueue("q", b"")
        (delivery,) = await client.claim("q")
        before = client.is_lost(delivery)
        await client.hold("q", [message_id])
        await client.settle([Release(delivery)])
        return before, client.is_lost(delivery)

    assert run(scene, work) == (False, True)


def test_what_is_handed_out_is_started(scene: Scene) -> None:
    scene.broker.enqueue("q", b"")

    async def work(client: AsyncClient) -> Delivery:
        deliveries = client.consume("q")
        delivery = await anext(deliveries)
        assert is_started(scene.broker, delivery.id)
        return delivery

    run(scene, work)


def test_a_queue_is_written_and_read_in_bulk(scene: Scene) -> None:
    async def work(client: AsyncClient) -> None:
        await client.staging.stage("t", "a", "q", [NewMessage(b"%d" % n) for n in range(5)])
        await client.staging.stage_batch("t", "b", "q", pa.RecordBatch.from_pydict({"payload": [b"5", b"6"]}))
        assert (await client.staging.publish("t", "q", ["a", "b"])).count == 7
        assert [write.token for write in await client.staging.list()] == ["t"]
        assert sum([batch.num_rows async for batch in client.browse_batches("q")]) == 7
        generation = (await client.consumers.register("etl", "q")).generation
        assert (await client.consumers.claim("etl", "q", generation, 1)).count == 7
        deliveries = [delivery async for delivery in client.consumers.read("etl", "q", generation, 1)]
        assert [delivery.payload for delivery in deliveries] == [b"%d" % n for n in range(7)]
        batches = [
            batch async for batch in client.consumers.read_batches("etl", "q", generation, 1, payloads=False)
        ]
        assert sum(batch.num_rows for batch in batches) == 7
        await client.consumers.record("etl", "q", generation, 1, [Release(deliveries[0])])
        assert (await client.consumers.close("etl", "q", generation, 1)).settled == {
            "completed": 6,
            "released": 1,
        }
        generation = (await client.consumers.register("etl", "q", default_outcome="release")).generation
        await client.consumers.claim("etl", "q", generation, 2)
        assert not (await client.consumers.begin_slice("etl", "q", generation, 2)).again
        (left,) = [
            delivery async for delivery in client.consumers.read("etl", "q", generation, 2, unsettled=True)
        ]
        await client.consumers.record("etl", "q", generation, 2, [Start(left)])
        assert (await client.consumers.begin_slice("etl", "q", generation, 2)).failed == 1
        assert [
            batch async for batch in client.consumers.read_batches("etl", "q", generation, 2, unsettled=True)
        ] == []

    run(scene, work)


def test_a_reading_that_is_left_or_refused_leaves_no_channel_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("read_page_messages"), 1)

    async def work(client: AsyncClient) -> None:
        scene.broker.enqueue_many("q", [NewMessage(b"x" * 1000)] * 2000)
        generation = (await client.consumers.register("etl", "q")).generation
        await client.consumers.claim("etl", "q", generation, 1)
        for _ in range(3):
            reading = client.consumers.read_batches("etl", "q", generation, 1)
            assert (await anext(aiter(reading))).num_rows == 1
            await reading.aclose()  # type: ignore[attr-defined]
        # The server notices when it writes the next part.
        await until(lambda: scene.flight._limits.channels == 0)
        with pytest.raises(errors.ClaimNotNext):
            _ = [batch async for batch in client.consumers.read_batches("etl", "q", generation, 2)]
        assert len([delivery async for delivery in client.consumers.read("etl", "q", generation, 1)]) == 2000

    run(scene, work)
