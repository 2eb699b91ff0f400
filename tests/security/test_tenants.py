"""Two tenants on one broker: they may use the same names, and no verb tells one of them which names the other
uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

import fairlead
from fairlead import Complete, NewMessage
from fairlead.errors import FairleadError
from fairlead.model.access import Right
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.ids import find_id
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.surface import ConsumersGroup, StagingGroup
from fairlead.testing import ServerProcess, run_server
from fairlead.wire.schemas import SETTLEMENTS
from tests.client.test_verbs import public
from tests.faces.doors import AioFace, ClientFace, CommandFace, CommandRefused
from tests.security.scene import Scene, opened

#: Every way to set tenants apart: what each may reach, its queue, and a queue that it could make.
APART = {
    "projects": (("a/*", "a/q", "a/none"), ("b/*", "b/q", "b/none")),
    "prefixes": (("a.*", "a.q", "a.none"), ("b.*", "b.q", "b.none")),
    "queues": (("ours", "ours", "ours"), ("theirs", "theirs", "theirs")),
    "queues of one project": (("p/ours", "p/ours", "p/ours"), ("p/theirs", "p/theirs", "p/theirs")),
}
DOORS = ("in process", "client", "aio")


class Tenant(NamedTuple):
    face: Any
    queue: str
    #: Not there, and another tenant could not tell.
    no_queue: str


Tenants = tuple[Tenant, Tenant]


def everything(pattern: str) -> list[str]:
    return [f"{right}:{pattern}" for right in Right]


@pytest.fixture(params=APART)
def tenants(request: pytest.FixtureRequest, scene: Scene) -> Tenants:
    """In process, each with a queue of its own."""
    made = []
    for pattern, queue, no_queue in APART[request.param]:
        scene.broker.create_queue(queue, retry="none")
        made.append(Tenant(scene.with_grants(*everything(pattern)), queue, no_queue))
    return made[0], made[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """With the key that may do everything."""
    data = tmp_path_factory.mktemp("tenants") / "data"
    with run_server(data, settings={"durability": "os", "auth.mode": "keys"}) as server:
        yield server, (data / BOOTSTRAP_FILE).read_text().strip()


@pytest.fixture(params=DOORS)
def at_doors(request: pytest.FixtureRequest) -> Iterator[Tenants]:
    """Two projects, at each door that carries these verbs."""
    with ExitStack() as stack:
        if request.param == "in process":
            scene = stack.enter_context(opened())
            for queue in ("a/q", "b/q"):
                scene.broker.create_queue(queue, retry="none")
            ours, theirs = (scene.with_grants(*everything(pattern)) for pattern in ("a/*", "b/*"))
            yield Tenant(ours, "a/q", "a/none"), Tenant(theirs, "b/q", "b/none")
            return
        server, root_key = request.getfixturevalue("server")
        root = stack.enter_context(fairlead.connect(server.address, api_key=root_key))
        made = []
        for project in (
            f"a-{request.param}-{request.node.name[5:9]}",
            f"b-{request.param}-{request.node.name[5:9]}",
        ):
            root.create_queue(f"{project}/q", retry="none")
            secret = root.keys.create(project, everything(f"{project}/*")).secret
            face = (ClientFace if request.param == "client" else AioFace)(server.address, secret)
            stack.callback(face.close)
            made.append(Tenant(face, f"{project}/q", f"{project}/none"))
        yield made[0], made[1]
        for tenant in made:
            root.delete_queue(tenant.queue)


def work(tenant: Tenant, payload: bytes) -> tuple[Any, ...]:
    """Writes under the token `daily` and reads as the consumer `etl`; what comes of it."""
    x, queue = tenant.face, tenant.queue
    staged = x.staging.stage("daily", "c", queue, [NewMessage(payload)]).count
    published = x.staging.publish("daily", queue, ["c"]).outcome
    generation = x.consumers.register("etl", queue).generation
    claimed = x.consumers.claim("etl", queue, generation, 1).count
    (delivery,) = x.consumers.read("etl", queue, generation, 1)
    x.consumers.record("etl", queue, generation, 1, [Complete(delivery)])
    settled = x.consumers.close("etl", queue, generation, 1).settled
    return staged, published, claimed, delivery.payload, settled


def shown(tenant: Tenant) -> tuple[Any, ...]:
    x = tenant.face
    consumers = [(info.queue, info.name, info.last_closed) for info in x.consumers.list()]
    return consumers, [
        (write.queue, write.token, write.published, write.messages) for write in x.staging.list()
    ]


def test_two_tenants_use_the_same_names_without_meeting(at_doors: Tenants) -> None:
    ours, theirs = at_doors
    assert work(theirs, b"theirs") == (1, "published", 1, b"theirs", {"completed": 1})
    assert work(ours, b"ours") == (1, "published", 1, b"ours", {"completed": 1})
    for tenant in (ours, theirs):
        assert shown(tenant) == ([(tenant.queue, "etl", 1)], [(tenant.queue, "daily", True, 1)])
    ours.face.consumers.drop("etl", ours.queue)
    assert theirs.face.consumers.show("etl", theirs.queue).last_closed == 1


def test_names_do_not_collide_however_tenants_are_set_apart(tenants: Tenants) -> None:
    ours, theirs = tenants
    for tenant, payload in ((theirs, b"theirs"), (ours, b"ours")):
        assert work(tenant, payload) == (1, "published", 1, payload, {"completed": 1})
        assert shown(tenant) == ([(tenant.queue, "etl", 1)], [(tenant.queue, "daily", True, 1)])


# What a foreign name tells

#: Each with a queue, a name, and the generation that the consumer of that name has at the other tenant.
CONSUMERS: dict[str, Callable[[Any, str, str, int], Any]] = {
    "register": lambda x, q, n, g: x.consumers.register(n, q),
    "register: other": lambda x, q, n, g: x.consumers.register(n, q, ttl="2s", default_outcome="release"),
    "claim": lambda x, q, n, g: x.consumers.claim(n, q, g, 1),
    "claim: next": lambda x, q, n, g: x.consumers.claim(n, q, g, 2),
    "read": lambda x, q, n, g: list(x.consumers.read(n, q, g, 1)),
    "record": lambda x, q, n, g: x.consumers.record(n, q, g, 1, []),
    "begin_slice": lambda x, q, n, g: x.consumers.begin_slice(n, q, g, 1),
    "choose": lambda x, q, n, g: x.consumers.choose(n, q, g, 1, ["p"]),
    "close": lambda x, q, n, g: x.consumers.close(n, q, g, 1),
    "close: nothing": lambda x, q, n, g: x.consumers.close(n, q, g, 0),
    "heartbeat": lambda x, q, n, g: x.consumers.heartbeat(n, q, g),
    "heartbeat: stale": lambda x, q, n, g: x.consumers.heartbeat(n, q, g - 1),
    "ceiling": lambda x, q, n, g: x.consumers.ceiling(n, q, g) > 0,
    "release": lambda x, q, n, g: x.consumers.release(n, q),
    "drop": lambda x, q, n, g: x.consumers.drop(n, q),
    "show": lambda x, q, n, g: x.consumers.show(n, q),
    "list": lambda x, q, n, g: [info.name for info in x.consumers.list() if info.name == n],
}
STAGING: dict[str, Callable[[Any, str, str, int], Any]] = {
    "stage": lambda x, q, n, g: x.staging.stage(n, "c", q, [NewMessage(b"1")]),
    "stage: dead letters": lambda x, q, n, g: x.staging.stage(
        n, "c", q, [NewMessage(b"1")], dead=("unknown", "bad")
    ),
    "publish": lambda x, q, n, g: x.staging.publish(n, q, ["c"]),
    "publish: nothing": lambda x, q, n, g: x.staging.publish(n, q, []),
    "discard": lambda x, q, n, g: x.staging.discard(n, q),
    "list": lambda x, q, n, g: [write.token for write in x.staging.list() if write.token == n],
}
#: What only a client has.
IN_BATCHES: dict[str, Callable[[Any, str, str, int], Any]] = {
    "read_batches": lambda x, q, n, g: list(x.consumers.read_batches(n, q, g, 1)),
    "record_batch": lambda x, q, n, g: x.consumers.record_batch(
        n, q, g, 1, pa.RecordBatch.from_pylist([], schema=SETTLEMENTS)
    ),
    "stage_batch": lambda x, q, n, g: x.staging.stage_batch(
        n, "c", q, pa.RecordBatch.from_pydict({"payload": [b"1"]})
    ),
}
VERBS = {f"consumers.{verb}": call for verb, call in CONSUMERS.items()} | {
    f"staging.{verb}": call for verb, call in STAGING.items()
}
COMMANDS: dict[str, Callable[[CommandFace, str, str, int], Any]] = {
    "consumer show": lambda x, q, n, g: x.run("consumer", "show", q, n),
    "consumer release": lambda x, q, n, g: x.run("consumer", "release", q, n, "--yes"),
    "consumer drop": lambda x, q, n, g: x.run("consumer", "drop", q, n, "--yes"),
    "staged discard": lambda x, q, n, g: x.run("staged", "discard", q, n, "--yes"),
}


def test_every_verb_of_both_groups_is_asked() -> None:
    for kind, calls in ((ConsumersGroup, CONSUMERS), (StagingGroup, STAGING)):
        assert {name.partition(":")[0] for name in calls} == public(kind) - {"read_pages"}


#: A name that only the other tenant has, in each state that it can be in.
STATES = ("x-in-hand", "x-idle", "x-staged", "x-published")


def furnish(tenant: Tenant) -> dict[str, int]:
    """Uses a name in each of the states; the generations of the consumers."""
    x, queue = tenant.face, tenant.queue
    generations = dict.fromkeys(STATES, 1)
    for state in ("x-in-hand", "x-idle"):
        generations[state] = x.consumers.register(state, queue).generation
        x.enqueue(queue, b"1")
        assert x.consumers.claim(state, queue, generations[state], 1).count == 1
    x.consumers.close("x-idle", queue, generations["x-idle"], 1)
    x.staging.stage("x-staged", "c", queue, [NewMessage(b"1")])
    x.staging.stage("x-published", "c", queue, [NewMessage(b"1")])
    x.staging.publish("x-published", queue, ["c"])
    return generations


def learnt(
    call: Callable[[Any, str, str, int], Any], x: Any, queue: str, name: str, generation: int
) -> tuple[Any, ...]:
    """All that a caller gets to know, but for the name and queue it gave, and the numbers that it is given
    anew.
    """
    try:
        answer = call(x, queue, name, generation)
    except CommandRefused as refused:
        told: tuple[Any, ...] = (refused.error, refused.said)
    except FairleadError as refused:
        told = (refused.code, refused.message, sorted(refused.fields.items()))
    else:
        if isinstance(answer, ConsumerInfo):
            answer = msgspec.structs.replace(answer, generation=0, seen_at=0, expires_at=0)
        told = ("", repr(answer))
    return tuple(repr(part).replace(name, "NAME").replace(queue, "QUEUE") for part in told)


def compare(
    call: Callable[[Any, str, str, int], Any], ours: Tenant, theirs: Tenant, name: str, generation: int
) -> None:
    """A foreign name in one's own queue; then one that is there, in a queue of theirs and in none."""
    x, nobody = ours.face, f"nobody {name}"
    assert learnt(call, x, ours.queue, name, generation) == learnt(call, x, ours.queue, nobody, generation)
    there = learnt(call, x, theirs.queue, name, generation)
    assert there == learnt(call, x, theirs.queue, nobody, generation)
    assert there == learnt(call, x, theirs.no_queue, name, generation)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_tells_that_another_tenant_has_the_name(tenants: Tenants, verb: str, name: str) -> None:
    ours, theirs = tenants
    generation = furnish(theirs)[name]
    before = shown(theirs)
    compare(VERBS[verb], ours, theirs, name, generation)
    assert shown(theirs) == before


@pytest.mark.parametrize("door", ["client", "aio", "command"])
def test_no_door_tells_that_another_tenant_has_the_name(server: tuple[ServerProcess, str], door: str) -> None:
    process, root_key = server
    faces = {"client": ClientFace, "aio": AioFace, "command": CommandFace}
    with fairlead.connect(process.address, api_key=root_key) as root:
        root.create_queue(f"{door}-b/q", retry="none")
        secret = root.keys.create(door, everything(f"{door}-a/*")).secret
        theirs = Tenant(root, f"{door}-b/q", f"{door}-b/none")
        generations = furnish(theirs)
        x: Any = faces[door](process.address, secret)  # type: ignore[abstract]
        calls = COMMANDS if door == "command" else VERBS | IN_BATCHES
        for at, call in enumerate(calls.values()):
            # A queue for each, or the names that one verb has made would be there for the next.
            ours = Tenant(x, f"{door}-a/{at}", "")
            root.create_queue(ours.queue)
            for name in STATES:
                compare(call, ours, theirs, name, generations[name])
        x.close()
        assert {info.open for info in root.consumers.list() if info.queue == theirs.queue} == {0, 1}
        assert {write.token for write in root.staging.list() if write.queue == theirs.queue} == {
            "x-staged",
            "x-published",
        }


def test_what_others_publish_moves_nothing_out_of_a_tenant_s_list(scene: Scene, tenants: Tenants) -> None:
    ours, theirs = tenants
    work(ours, b"1")
    for n in range(2100):
        scene.clock.advance(ms=1)
        theirs.face.staging.publish(f"t{n}", theirs.queue, [])
    assert shown(ours)[1] == [(ours.queue, "daily", True, 1)]
    assert len(shown(theirs)[1]) == 1000


def test_whoever_may_see_all_queues_sees_all_names_each_with_its_queue(
    scene: Scene, tenants: Tenants
) -> None:
    for tenant in tenants:
        work(tenant, b"1")
    admin = scene.with_grants("admin:*")
    assert [(info.queue, info.name) for info in admin.consumers.list()] == [
        (tenant.queue, "etl") for tenant in tenants
    ]
    assert {(write.queue, write.token) for write in admin.staging.list()} == {
        (tenant.queue, "daily") for tenant in tenants
    }


def test_a_lease_that_is_held_is_explained_by_the_consumer_of_its_own_queue(tenants: Tenants) -> None:
    for tenant in tenants:
        tenant.face.enqueue(tenant.queue, b"1")
        generation = tenant.face.consumers.register("etl", tenant.queue).generation
        tenant.face.consumers.claim("etl", tenant.queue, generation, 1)
    ours, theirs = tenants
    (message,) = ours.face.peek(ours.queue, where="leased")
    assert find_id(message.id) is not None
    told = str(ours.face.explain(message.id))
    assert f"consumer release {ours.queue} etl" in told
    assert theirs.queue not in told.replace(ours.queue, "")
    assert ours.face.consumers.release("etl", ours.queue) == 1
    assert theirs.face.consumers.show("etl", theirs.queue).open == 1
