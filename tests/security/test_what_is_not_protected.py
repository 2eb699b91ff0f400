"""The limits that docs/explanation/threat-model.md owns up to, as they are. A test that fails here means that
the page can promise more.
"""

from __future__ import annotations

import msgspec

from fairlead import DeadFilter, NewMessage
from fairlead.decide.redact import Redaction
from fairlead.middleware.stack import Layers
from fairlead.model.settle import Complete, DeliveryRef, Fail
from fairlead.testing.engine import replace_audit_record
from tests.security.scene import Scene


def test_a_key_goes_on_when_the_key_that_made_it_is_revoked(scene: Scene) -> None:
    maker = scene.key("admin:q", "produce:q")
    made = scene.as_key(maker).keys.create("made", ["produce:q"])
    scene.broker.create_queue("q")
    scene.broker.keys.revoke(maker.info.id)
    assert scene.as_key(made).enqueue("q", b"")
    assert scene.broker.keys.show(made.info.id).created_by == maker.info.id


def test_consumers_of_one_queue_can_settle_what_another_key_holds(scene: Scene) -> None:
    scene.broker.create_queue("q")
    scene.broker.enqueue_many("q", [NewMessage(b"")] * 4)
    first, second = scene.with_grants("consume:q"), scene.with_grants("consume:q")
    by_id, by_token, own, later = [x.claim("q")[0] for x in (first, first, second, second)]
    assert by_id.id in {seen.id for seen in second.peek("q", where="leased")}
    assert second.ack("q", by_id.id).ok
    # A token is made of the number of a claim: a consumer that claims twice can work out the ones before.
    guessed = f"{2 * int(own.lease, 16) - int(later.lease, 16):x}"
    assert second.settle([Complete(DeliveryRef(by_token.id, guessed))])[0].outcome == "completed"


def test_a_hook_reads_the_whole_runtime_configuration_whoever_wrote_it(scene: Scene) -> None:
    scene.broker.config.set("payments.note", "not-for-others")
    tenant = scene.with_grants("admin:tenant/*", "produce:tenant/*", "consume:tenant/*")
    tenant.create_queue(
        "tenant/q",
        on_enqueue='function on_enqueue(msg) return { fairness_key = fairlead.get("payments.note") } end',
    )
    tenant.enqueue("tenant/q", b"")
    assert tenant.peek("tenant/q")[0].fairness_key == "not-for-others"


def test_error_texts_and_keys_are_seen_without_the_right_to_read_payloads(scene: Scene) -> None:
    scene.broker.create_queue("q", retry="none")
    scene.broker.enqueue("q", b"4111", fairness_key="ann@example.org")
    scene.broker.settle([Fail(scene.broker.claim("q")[0], error="card 4111 declined")])
    (seen,) = scene.with_grants("produce:q").peek("q.dlq")
    assert (seen.payload, seen.failures[-1].error, seen.fairness_key) == (
        b"",
        "card 4111 declined",
        "ann@example.org",
    )


def test_what_is_redacted_in_an_error_text_can_be_guessed_by_a_filter(scene: Scene) -> None:
    scene.broker.create_queue("q", retry="none")
    scene.broker.enqueue("q", b'{"pin": "4711"}')
    scene.broker.settle([Fail(scene.broker.claim("q")[0], error="pin 4711 is wrong")])
    access = Layers(scene.broker, keys=True, redaction=Redaction(json_paths=("$.pin",)))
    operator = access.admit(f"Bearer {scene.key('redrive:q').secret}", "test")
    assert operator.peek("q.dlq")[0].failures[-1].error == "pin [redacted] is wrong"
    assert [
        operator.redrive("q.dlq", filter=DeadFilter(error=guess), dry_run=True).matched
        for guess in ("4710", "4711")
    ] == [0, 1]


def test_a_throttle_key_is_shared_by_all_queues(scene: Scene) -> None:
    for queue in ("a/q", "b/q"):
        scene.broker.create_queue(queue)
    scene.broker.config.set("throttle:mail:rate", 0.001)
    scene.broker.config.set("throttle:mail:burst", 1)
    scene.broker.enqueue("a/q", b"", throttle_keys=["mail"])
    other = scene.with_grants("produce:b/*", "consume:b/*")
    other.enqueue("b/q", b"", throttle_keys=["mail"])
    assert len(other.claim("b/q")) == 1
    assert scene.broker.claim("a/q") == []


def test_whoever_can_write_the_store_can_change_the_audit(scene: Scene) -> None:
    scene.local().create_queue("q")
    (record,) = scene.broker.audit.read()
    replace_audit_record(scene.broker, msgspec.structs.replace(record, name="somebody else"))
    assert scene.broker.audit.read()[0].name == "somebody else"
