"""Redaction: what people see of a message. Values in, values out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fairlead.decide import redact
from fairlead.decide.redact import Redaction
from fairlead.errors import InvalidRequest
from fairlead.model.failure import FailureRecord, Progress
from fairlead.model.views import MessageInfo

CARD = "4111-1111-1111-1111"


def info(
    payload: bytes = b"",
    *,
    headers: dict[str, str] | None = None,
    carry: bytes = b"",
    errors: tuple[str, ...] = (),
) -> MessageInfo:
    failures = tuple(
        FailureRecord(1, at, 2, error, "c", "queue policy") for at, error in enumerate(errors, 1)
    )
    return MessageInfo(
        id="x",
        queue="q",
        where="ready",
        payload=payload,
        headers=headers or {},
        fairness_key="default",
        weight=1,
        throttle_keys=(),
        stream=None,
        enqueued_at=0,
        place=1,
        seq=0,
        attempts=0,
        deliveries=0,
        progress=Progress(0),
        carry=carry,
        failures=failures,
        failures_cut=0,
        reason=None,
        rule="",
        due_at=None,
        expires_at=None,
        lease_until=None,
        consumer=None,
        source=None,
        dead_since=None,
    )


def shown(message: MessageInfo, *paths: str, headers: tuple[str, ...] = ()) -> MessageInfo:
    return Redaction(headers=headers, json_paths=paths).shown([message])[0]


def payload_of(tree: object, *paths: str) -> object:
    return json.loads(shown(info(json.dumps(tree).encode()), *paths).payload)


def test_the_headers_that_carry_credentials_are_redacted_by_default_in_any_case() -> None:
    given = {
        "Authorization": "Bearer x",
        "COOKIE": "a=b",
        "Set-Cookie": "c",
        "X-API-Key": "d",
        "proxy-authorization": "e",
        "tenant": "acme",
    }
    found = Redaction().shown([info(headers=given)])[0]
    assert found.headers == dict.fromkeys(list(given)[:5], "[redacted]") | {"tenant": "acme"}
    assert found.hidden == tuple(f"header {name}" for name in list(given)[:5])


def test_a_star_at_the_end_of_a_header_name_stands_for_any_ending() -> None:
    found = shown(
        info(headers={"X-Secret-One": "1", "x-secret-": "2", "x-secre": "3"}), headers=("x-secret-*",)
    )
    assert found.headers == {"X-Secret-One": "[redacted]", "x-secret-": "[redacted]", "x-secre": "3"}


def test_a_member_is_redacted_and_everything_around_it_stays() -> None:
    tree = {"card": {"number": CARD, "holder": "Ä"}, "number": 7, "list": [{"number": 8}]}
    assert payload_of(tree, "$.card.number") == {**tree, "card": {"number": "[redacted]", "holder": "Ä"}}


def test_what_a_path_names_is_redacted_whatever_it_is() -> None:
    for value in (1, 1.5, None, True, "x", [1], {"a": 1}):
        assert payload_of({"a": value, "b": value}, "$.a") == {"a": "[redacted]", "b": value}


def test_each_element_of_a_list_is_met() -> None:
    tree = {"items": [{"iban": "a", "n": 1}, {"n": 2}, ["iban"]], "other": [{"iban": "b"}]}
    assert payload_of(tree, "$.items[*].iban") == {
        **tree,
        "items": [{"iban": "[redacted]", "n": 1}, {"n": 2}, ["iban"]],
    }
    assert payload_of([[1, 2], [3]], "$[*][*]") == [["[redacted]"] * 2, ["[redacted]"]]


def test_a_name_is_met_at_any_depth() -> None:
    tree = {"password": "a", "b": [{"password": {"x": 1}, "c": {"password": 3}}], "pass": "d"}
    hidden = "[redacted]"
    assert payload_of(tree, "$..password") == {
        "password": hidden,
        "b": [{"password": hidden, "c": {"password": hidden}}],
        "pass": "d",
    }
    tree = {"x": {"card": {"n": 1}, "n": 2}, "card": [{"n": 3}]}
    assert payload_of(tree, "$..card.n") == {**tree, "x": {"card": {"n": hidden}, "n": 2}}


def test_paths_that_share_steps_are_all_followed() -> None:
    tree = {"a": {"b": 1, "c": [{"d": 2}]}, "b": 3, "x": {"c": {"d": 5}}}
    hidden = "[redacted]"
    found = shown(info(json.dumps(tree).encode()), "$.a.b", "$.a.c[*].d", "$..d")
    assert json.loads(found.payload) == {
        "a": {"b": hidden, "c": [{"d": hidden}]},
        "b": 3,
        "x": {"c": {"d": hidden}},
    }
    assert set(found.hidden) == {"payload $.a.b", "payload $.a.c[*].d", "payload $..d"}


def test_the_carry_is_looked_into_as_well() -> None:
    found = shown(info(b"{}", carry=b'{"token": "abc"}'), "$.token")
    assert (found.payload, found.carry, found.hidden) == (
        b"{}",
        b'{"token":"[redacted]"}',
        ("carry $.token",),
    )


def test_what_no_path_meets_stays_byte_for_byte() -> None:
    raw = b' {"a" : 1.10,\n "b": "\\u00e4"} '
    found = shown(info(raw), "$.c", "$..d", "$.a.x")
    assert (found.payload, found.hidden) == (raw, ())


@pytest.mark.parametrize(
    "raw",
    [b"", b"plain text", b"\x00\x01\xff\xfe", b"[INFO] password=x", b"{{template}}", b'"password"', b"12"],
)
def test_a_payload_that_is_no_json_stays(raw: bytes) -> None:
    assert shown(info(raw), "$..password").payload == raw


def test_a_dollar_alone_hides_every_payload() -> None:
    found = shown(info(b"plain text", carry=b"", errors=("could not read plain text",)), "$")
    assert (found.payload, found.carry, found.failures[0].error) == (b"[redacted]", b"", "[redacted]")
    assert found.hidden == ("payload", "errors")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"password": "hunter2"}\n{"password": "hunter2"}',
        b'{"password": "hunter2", "b": ',
        b'[{"password": "hunter2"},]',
        b'{"a":' * 100_000 + b'"hunter2"',
        b'{"n": ' + b"9" * 5000 + b', "password": "hunter2"}',
        b'{"password": "hunter2", "x": "' + b"y" * redact.MAX_JSON_BYTES + b'"}',
    ],
    ids=["several in a row", "cut off", "a comma too many", "deep", "a huge number", "large"],
)
def test_what_was_meant_as_json_and_cannot_be_looked_into_is_left_out_whole(raw: bytes) -> None:
    found = shown(info(raw, errors=("wrong: hunter2",)), "$..password")
    assert (found.payload, found.failures[0].error, found.hidden) == (
        b"[redacted]",
        "[redacted]",
        ("payload", "errors"),
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_json_in_another_unicode_is_no_way_around(encoding: str) -> None:
    assert json.loads(shown(info('{"password": "hunter2"}'.encode(encoding)), "$..password").payload) == {
        "password": "[redacted]"
    }


def test_a_byte_that_is_no_utf8_is_no_way_around() -> None:
    raw = b'{"name":"M\xfcller","password":"hunter2"}'
    assert shown(info(raw), "$..password").payload == b'{"name":"M\xfcller","password":"[redacted]"}'
    assert (
        b"hunter2" not in shown(info(b'{"name":"\\ud800 \xfc","password":"hunter2"}'), "$..password").payload
    )


def test_a_name_written_with_escapes_is_no_way_around() -> None:
    assert json.loads(shown(info(b'{"p\\u0061ssword": "hunter2"}'), "$..password").payload) == {
        "password": "[redacted]"
    }


@pytest.mark.parametrize(
    "raw",
    [
        b'{"password": "hunter2", "password": "hunter3"}',
        b'{"login": {"password": "hunter2"}, "login": 1}',
        b'[{"login": [{"password": "hunter2"}], "login": {}}]',
    ],
    ids=["itself", "what it is in", "deeper"],
)
def test_a_name_given_twice_hides_the_first_value_from_paths_and_so_the_whole_from_people(raw: bytes) -> None:
    found = shown(info(raw, errors=("wrong: hunter2",)), "$..password")
    assert (found.payload, found.failures[0].error) == (b"[redacted]", "[redacted]")


def test_error_texts_lose_the_values_that_are_redacted() -> None:
    message = info(
        json.dumps({"card": {"number": CARD, "cvv": 7142}, "amount": 9}).encode(),
        headers={"authorization": "Bearer abcdefgh123"},
        errors=(f"card {CARD} (cvv 7142) declined, amount 9", "token abcdefgh123 is over", "nothing of it"),
    )
    found = shown(message, "$.card", headers=("authorization",))
    assert [failure.error for failure in found.failures] == [
        "card [redacted] (cvv [redacted]) declined, amount 9",
        "token [redacted] is over",
        "nothing of it",
    ]
    assert found.hidden == ("header authorization", "payload $.card", "errors")


def test_very_short_values_do_not_shred_error_texts() -> None:
    assert shown(info(b'{"pin": "1"}', errors=("line 1 of 11",)), "$.pin").failures[0].error == "line 1 of 11"


def test_a_value_is_not_found_inside_the_mark_of_another() -> None:
    found = shown(
        info(b'{"a": "secret", "b": "red", "c": "redacted"}', errors=("secret red",)), "$.a", "$.b", "$.c"
    )
    assert found.failures[0].error == "[redacted] [redacted]"


def test_a_value_that_begins_like_another_is_struck_whole() -> None:
    found = shown(info(b'{"a": "abc", "b": "abcdef"}', errors=("abcdef abc",)), "$.a", "$.b")
    assert found.failures[0].error == "[redacted] [redacted]"


def test_a_message_with_very_many_redacted_values_shows_no_error_text() -> None:
    payload = json.dumps({"all": [f"value{n}" for n in range(redact.MAX_VALUES + 1)]}).encode()
    assert shown(info(payload, errors=("value7 is wrong",)), "$.all").failures[0].error == "[redacted]"


def test_the_messages_of_one_answer_share_a_bound_and_what_is_beyond_is_left_out() -> None:
    large = info(b'{"a": "' + b"x" * (redact.MAX_JSON_BYTES - 10) + b'"}')
    found = Redaction(json_paths=("$.password",)).shown([large] * 20)
    assert [message.hidden for message in found] == [()] * 16 + [("payload",)] * 4


def test_text_about_a_message_is_struck_like_its_errors() -> None:
    rule = Redaction(json_paths=("$.card",))
    assert (
        rule.text(info(b'{"card": "4111"}'), "last error: 4111 declined") == "last error: [redacted] declined"
    )


@pytest.mark.parametrize(
    "path",
    [
        "",
        "card",
        "$card",
        "$.",
        "$..",
        "$.a.",
        "$.a[0]",
        "$.a['b']",
        "$.*",
        "$.a..b",
        "$ .a",
        "$[*",
        7,
        "$.a" * 99,
    ],
)
def test_a_path_outside_the_subset_is_refused(path: object) -> None:
    with pytest.raises(InvalidRequest, match=r"redact\.json_paths"):
        Redaction(json_paths=(path,))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a*b", "*a", " a", "a,b", 7])
def test_a_header_name_with_a_star_elsewhere_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequest, match=r"redact\.headers"):
        Redaction(headers=(name,))  # type: ignore[arg-type]


def test_more_names_than_anyone_needs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 100"):
        Redaction(json_paths=("$.a",) * 101)


_json = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats()
    | some.text(max_size=5)
    | some.just("hunter2"),
    lambda inner: (
        some.lists(inner, max_size=4)
        | some.dictionaries(some.sampled_from(["a", "password"]) | some.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(tree=_json, errors=some.lists(some.text(max_size=20), max_size=2))
def test_no_value_below_a_redacted_name_is_shown_and_all_else_is(tree: object, errors: list[str]) -> None:
    message = info(json.dumps(tree).encode(), errors=tuple(errors))
    found = json.loads(shown(message, "$..password").payload)
    assert json.dumps(found) == json.dumps(_without_passwords(tree))


def _without_passwords(tree: object) -> object:
    if isinstance(tree, dict):
        return {
            name: "[redacted]" if name == "password" else _without_passwords(value)
            for name, value in tree.items()
        }
    return [_without_passwords(value) for value in tree] if isinstance(tree, list) else tree


@settings(deadline=None)
@given(
    raw=some.binary(max_size=60) | some.text(alphabet='{}[]":,\\u0a1 ', max_size=60).map(str.encode),
    text=some.text(max_size=20),
)
def test_nothing_that_a_message_holds_raises(raw: bytes, text: str) -> None:
    message = info(raw, carry=raw, headers={text: text}, errors=(text,))
    Redaction(json_paths=("$.a", "$..b", "$[*]")).shown([message])
