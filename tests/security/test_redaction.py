"""What is redacted is not seen where people look, and is untouched where work is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import Broker
from fairlead.decide.dead_filter import DeadFilter
from fairlead.decide.redact import Redaction
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.settle import Extend, Fail
from fairlead.testing import open_in_memory
from fairlead.testing.server import run_server

SECRET = "4111-canary-1111"
PAYLOAD = json.dumps({"card": SECRET, "amount": 7}).encode()
HEADERS = {"Authorization": f"Bearer {SECRET}", "tenant": "acme"}
RULE = Redaction(headers=("authorization",), json_paths=("$.card",))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_in_memory() as opened:
        opened.create_queue("q", retry="none")
        yield opened


@pytest.fixture
def guard(broker: Broker) -> AdmittedCaller:
    """Somebody who may do everything."""
    return Layers(broker, RULE).admit(None, "a test")


def die(broker: Broker) -> str:
    message_id = broker.enqueue("q", PAYLOAD, headers=HEADERS)
    delivery = broker.claim("q")[0]
    broker.settle([Extend(delivery, "30s", carry=PAYLOAD)])
    broker.settle([Fail(delivery, error=f"card {SECRET} declined")])
    return message_id


def test_find_and_peek_show_neither_the_value_nor_the_error_that_quotes_it(
    broker: Broker, guard: AdmittedCaller
) -> None:
    message_id = die(broker)
    for info in (guard.find(message_id), guard.peek("q.dlq")[0]):
        assert SECRET not in f"{info!r} {info.payload!r}"
        assert json.loads(info.payload) == {"card": "[redacted]", "amount": 7}
        assert json.loads(info.carry) == {"card": "[redacted]", "amount": 7}
        assert info.headers == {"Authorization": "[redacted]", "tenant": "acme"}
        assert info.failures[-1].error == "card [redacted] declined"
        assert info.hidden == ("header Authorization", "payload $.card", "carry $.card", "errors")


def test_an_explanation_does_not_quote_it_either(broker: Broker, guard: AdmittedCaller) -> None:
    message_id = die(broker)
    assert SECRET in str(broker.explain(message_id))
    assert "last error: card [redacted] declined" in str(guard.explain(message_id))


def test_who_may_not_read_payloads_does_not_find_the_value_in_an_error_text(broker: Broker) -> None:
    message_id = die(broker)
    key = broker.keys.create("watcher", ["consume:q"])
    watcher = Layers(broker, keys=True, redaction=RULE).admit(f"Bearer {key.secret}", "a test")
    info = watcher.find(message_id)
    assert (info.payload, info.failures[-1].error) == (b"", "card [redacted] declined")
    assert info.hidden == ("payload", "headers", "carry", "errors")


def test_a_look_at_a_redacted_message_is_still_a_look_that_is_written_down(
    broker: Broker, guard: AdmittedCaller
) -> None:
    die(broker)
    guard.peek("q.dlq")
    assert [(record.verb, record.count) for record in broker.audit.read(verb="peek")] == [("peek", 1)]


def test_a_claim_and_a_drain_get_the_message_as_it_is(broker: Broker, guard: AdmittedCaller) -> None:
    die(broker)
    broker.enqueue("q", PAYLOAD, headers=HEADERS)
    assert (guard.claim("q")[0].payload, guard.claim("q.dlq")[0].headers) == (PAYLOAD, HEADERS)
    broker.enqueue("q", PAYLOAD, headers=HEADERS)
    (drained,) = guard.drain("q")
    assert (drained.payload, drained.headers, drained.hidden) == (PAYLOAD, HEADERS, ())


def test_the_audit_keeps_of_a_header_that_was_searched_for_only_its_name(
    broker: Broker, guard: AdmittedCaller
) -> None:
    die(broker)
    assert guard.redrive("q.dlq", filter=DeadFilter(header=("Authorization", f"Bearer {SECRET}"))).moved == 1
    (record,) = broker.audit.read(verb="redrive")
    assert "Authorization" in record.details["filter"]
    assert SECRET not in str(record)


def test_a_server_redacts_credentials_by_default_and_paths_when_told(tmp_path: Path) -> None:
    settings = {"durability": "os", "redact.json_paths": "$.card, $..password"}
    with (
        run_server(tmp_path / "data", settings=settings) as server,
        fairlead.connect(server.address) as client,
    ):
        client.create_queue("q")
        client.enqueue("q", PAYLOAD, headers=HEADERS)
        (info,) = client.peek("q")
        assert (json.loads(info.payload), info.headers["Authorization"]) == (
            {"card": "[redacted]", "amount": 7},
            "[redacted]",
        )
        assert info.hidden == ("header Authorization", "payload $.card")
        assert client.claim("q")[0].payload == PAYLOAD
