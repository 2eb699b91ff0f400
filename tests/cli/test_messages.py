from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead import Fail, NewMessage
from fairlead.cli.app import app
from tests.cli.conftest import Commands, Opener, Orders


def test_push_takes_the_payload_as_text_from_stdin_or_from_a_file(
    cli: Commands, broker: Opener, orders: Orders, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff file")
    ids = [
        cli.ok("queue", "push", "orders", "tëxt").out.strip(),
        cli.ok("queue", "push", "orders", "-", input=b"\xfe\x01").out.strip(),
        cli.ok("queue", "push", "orders", "--file", tmp_path / "body").out.strip(),
        cli.ok("queue", "push", "orders", "").out.strip(),
    ]
    with broker() as opened:
        assert [opened.find(message_id).payload for message_id in ids] == [
            "tëxt".encode(),
            b"\xfe\x01",
            b"\x00\xff file",
            b"",
        ]


def test_push_passes_everything_on(cli: Commands, broker: Opener, orders: Orders) -> None:
    pushed = cli.json(
        "queue",
        "push",
        "orders",
        "x",
        "--key",
        "acme",
        "--weight",
        "5",
        "--throttle",
        "a",
        "--throttle",
        "b",
        "--stream",
        "s",
        "-H",
        "one=1",
        "--header",
        "two=a=b",
        "--delay",
        "1h",
        "--ttl",
        "2h",
        "--dedup",
        "d",
    )
    again = cli.json("queue", "push", "orders", "y", "--dedup", "d")
    assert pushed == again
    assert pushed["queue"] == "orders"
    with broker() as opened:
        info = opened.find(pushed["id"])
    assert (info.fairness_key, info.weight, info.throttle_keys, info.stream) == ("acme", 5, ("a", "b"), "s")
    assert info.headers == {"one": "1", "two": "a=b"}
    assert (info.where, info.payload) == ("waiting", b"x")
    assert info.due_at is not None
    assert info.due_at - info.enqueued_at == 3_600_000
    assert info.expires_at is not None
    assert info.expires_at - info.enqueued_at == 7_200_000


@pytest.mark.parametrize("args", [[], ["x", "--file", "f"], ["x", "--header", "novalue"]])
def test_push_refuses_what_is_not_one_payload_and_whole_headers(
    cli: Commands, orders: Orders, args: list[str]
) -> None:
    assert cli("queue", "push", "orders", *args).code == 2


def test_what_is_redacted_is_not_on_the_terminal_and_a_drain_has_it(cli: Commands, broker: Opener) -> None:
    with broker() as opened:
        opened.create_queue("q")
        message_id = opened.enqueue(
            "q", b'{"card": "4111-1111", "n": 1}', headers={"Authorization": "Bearer hunter22"}
        )
    env: dict[str, str | None] = {"FAIRLEAD_REDACT_JSON_PATHS": "$.card"}
    for args in (
        ["queue", "inspect", "q", message_id],
        ["queue", "peek", "q"],
        ["queue", "peek", "q", "-o", "json"],
    ):
        ran = cli(*args, env=env)
        assert ran.code == 0, ran.err
        assert "[redacted]" in ran.out
        assert not any(secret in ran.out for secret in ("4111", "hunter22"))
    assert "header Authorization, payload $.card" in cli("queue", "inspect", "q", message_id, env=env).out
    payload = cli("queue", "inspect", "q", message_id, "--payload", env=env)
    assert (payload.out, "payload $.card is not shown" in payload.err) == (
        '{"card":"[redacted]","n":1}',
        True,
    )
    drained = cli("queue", "drain", "q", "--yes", "-o", "json", env=env)
    assert (drained.json()[0]["headers"], "4111-1111" in drained.out) == (
        {"Authorization": "Bearer hunter22"},
        True,
    )
    assert cli("queue", "list", env={"FAIRLEAD_REDACT_JSON_PATHS": "card"}).code == 3


def test_a_file_that_cannot_be_read_is_an_error_in_one_line(cli: Commands, orders: Orders) -> None:
    ran = cli("queue", "push", "orders", "--file", "/no/such/file")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: No such file or directory: /no/such/file\n"
    assert cli("queue", "push", "orders", "--file", "/no/such/file", "-o", "json").error()["code"] == "system"


def test_quarantine_puts_a_message_among_the_dead_letters(cli: Commands, orders: Orders) -> None:
    for queue in ("orders", "orders.dlq"):
        said = cli.json(
            "queue",
            "quarantine",
            queue,
            "7,95",
            "--because",
            "a comma",
            "--as",
            "serialization_error",
            "--key",
            "a",
        )
        assert said["queue"] == "orders.dlq"
        listed = cli.ok("queue", "show", "orders.dlq").lines
        assert [line.split()[:3] for line in listed if line.startswith(said["id"][-8:])] == [
            [said["id"][-8:], "dead", "1"]
        ]
        dead = cli.json("queue", "inspect", "orders", said["id"])
        assert (dead["status"], dead["payload"], dead["reason"]) == ("dead", "7,95", "serialization_error")
        assert dead["failures"][0]["error"] == "a comma"
        cli.ok("queue", "retry", "orders", said["id"])
        assert cli.json("queue", "inspect", "orders", said["id"])["fairness_key"] == "a"
    assert cli("queue", "quarantine", "orders", "x", "--as", "nonsense").code == 2


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (
            ("queue", "push", "orders.dlq", "x"),
            "expected queue to be no dead-letter queue; a quarantine puts messages there, got 'orders.dlq'",
        ),
        (
            ("queue", "delete", "orders.dlq", "--yes"),
            "expected queue to be a source queue: a dead-letter queue goes with its source, and a purge empties it, got 'orders.dlq'",
        ),
        (
            ("queue", "push", "orders", "x", "--delay", "soon"),
            """expected delay to be a duration such as "30s" or "1h30m", got 'soon'""",
        ),
        (
            ("consumer", "show", "orders", "nobody"),
            "queue 'orders' has no durable consumer 'nobody'\n       list the consumers with: fairlead consumer list",
        ),
    ],
)
def test_an_error_of_the_command_names_no_python(
    cli: Commands, orders: Orders, args: tuple[str, ...], error: str
) -> None:
    assert cli(*args).err == f"error: {error}\n"


def test_peek_says_in_which_order_it_lists(cli: Commands) -> None:
    assert "listed key by key" in " ".join(cli.ok("queue", "peek", "--help").out.split())


def test_show_counts_failures_since_the_last_retry_and_says_when_there_were_more_before(
    cli: Commands, orders: Orders
) -> None:
    cli.ok("queue", "retry", "orders", orders.dead)
    (line,) = [line for line in cli.ok("queue", "show", "orders").lines if line.startswith(orders.dead[-8:])]
    assert line.split()[1:6] == ["pending", "0", "(1", "in", "all)"]


def test_piped_inspect_shows_long_payloads_and_errors_whole(cli: Commands, orders: Orders) -> None:
    payload, error = "p" * 150_000, "e" * 400
    message_id = cli.ok("queue", "push", "orders", payload).out.strip()
    cli.ok("queue", "bury", "orders", message_id, "--because", error)
    shown = cli.ok("queue", "inspect", "orders", message_id).lines
    assert [line.split()[1] for line in shown if line.startswith("payload")] == [payload]
    assert shown[-1].endswith(error)


def test_a_dead_letter_queue_is_inspected_as_one(cli: Commands, orders: Orders) -> None:
    shown = dict(line.split("  ", 1) for line in cli.ok("queue", "inspect", "orders.dlq").lines)
    page = {name: value.strip() for name, value in shown.items()}
    assert page["messages"].startswith("1 dead, 0 of them leased, ")
    assert sorted(page) == [
        "consumers",
        "created",
        "messages",
        "queue",
        "source",
        "state",
        "visibility-timeout",
    ]


def test_a_dead_letter_does_not_say_that_it_was_never_delivered(cli: Commands, orders: Orders) -> None:
    def attempts(queue: str, message_id: str) -> str:
        page = cli.ok("queue", "inspect", queue, message_id).lines
        return next(line.split("  ", 1)[1].strip() for line in page if line.startswith("attempts"))

    assert attempts("orders", orders.dead) == "1 in this life, 1 failure in all"
    assert attempts("orders", orders.failed) == "1 in this life, 1 delivery, 1 failure in all"


def test_after_a_retry_show_counts_the_failures_of_this_life_and_names_the_others(
    cli: Commands, orders: Orders
) -> None:
    cli.ok("queue", "retry", "orders", orders.dead)
    lines = cli.ok("queue", "show", "orders", "--status", "pending").lines
    (line,) = [line for line in lines if line.startswith(orders.dead[-8:])]
    assert line.split()[1:5] == ["pending", "0", "(1", "in"]


def test_show_lists_every_status_with_its_failures(cli: Commands, orders: Orders) -> None:
    summary, header, *lines = cli.ok("queue", "show", "orders").lines
    assert summary == "orders: 1 pending, 1 active, 0 completed, 3 waiting (failed, delayed or held), 1 dead"
    assert header.split()[:3] == ["id", "status", "failures"]
    assert [tuple(line.split()[:3]) for line in lines] == [
        (orders.pending[-8:], "pending", "0"),
        (orders.delayed[-8:], "delayed", "0"),
        (orders.held[-8:], "held", "0"),
        (orders.active[-8:], "active", "0"),
        (orders.failed[-8:], "failed", "1"),
        (orders.dead[-8:], "dead", "1"),
    ]
    assert "transport_unavailable: SMTP 421" in lines[4]
    assert "ann" in lines[3]


def test_show_as_json_has_full_ids_and_the_fields_of_python(
    cli: Commands, broker: Opener, orders: Orders
) -> None:
    found = cli.json("queue", "show", "orders", "--status", "dead", "--status", "failed")
    assert [(message["id"], message["status"]) for message in found["messages"]] == [
        (orders.failed, "failed"),
        (orders.dead, "dead"),
    ]
    dead = found["messages"][1]
    with broker() as opened:
        info = opened.find(orders.dead)
    assert set(dead) == {"status", *info.__dataclass_fields__}
    assert (dead["reason"], dead["attempts"], dead["dead_since"]) == (
        "serialization_error",
        1,
        info.dead_since,
    )
    assert (dead["failures"][0]["reason"], dead["failures"][0]["error"]) == (
        "serialization_error",
        "bad json",
    )


def test_show_says_how_many_it_left_out(cli: Commands, broker: Opener) -> None:
    with broker() as opened:
        opened.create_queue("many")
        opened.enqueue_many("many", [NewMessage(b"x") for _ in range(450)])
    ran = cli.ok("queue", "show", "many", "-n", "3")
    assert len(ran.lines) == 1 + 1 + 3 + 1
    assert ran.lines[-1].startswith("447 more")
    assert len(cli.json("queue", "show", "many", "-n", "1000")["messages"]) == 450, "page by page"


def test_failed_messages_are_found_behind_a_page_of_delayed_ones(
    cli: Commands, broker: Opener, orders: Orders
) -> None:
    with broker() as opened:
        opened.enqueue_many("orders", [NewMessage(b"soon", delay="10m") for _ in range(250)])
    found = cli.json("queue", "show", "orders", "--status", "failed", "-n", "1")
    assert [message["id"] for message in found["messages"]] == [orders.failed]


def test_a_message_is_inspected_by_full_id_prefix_or_tail(cli: Commands, orders: Orders) -> None:
    # The ids of one commit may have the first 18 characters in common.
    for given in (orders.dead, orders.dead[:28], orders.dead[-8:], orders.dead[-8:].upper()):
        assert cli.json("queue", "inspect", "orders", given)["id"] == orders.dead
    text = cli.ok("queue", "inspect", "orders", orders.dead[-8:]).out
    for part in (orders.dead, "serialization_error", "bad json", "instruction", "ann", "dead since"):
        assert part in text


def test_an_id_that_fits_several_messages_is_an_error_that_names_them(cli: Commands, orders: Orders) -> None:
    ran = cli("queue", "inspect", "orders", orders.dead[:4])
    assert ran.code == 3
    assert "give more characters" in ran.err


def test_a_payload_can_be_had_byte_for_byte(cli: Commands, orders: Orders) -> None:
    body = bytes(range(256))
    message_id = cli.ok("queue", "push", "orders", "-", input=body).out.strip()
    got = CliRunner(env={"FAIRLEAD_DATA": str(cli.data)}).invoke(
        app, ["queue", "inspect", "orders", message_id, "--payload"]
    )
    assert got.stdout_bytes == body
    assert cli("queue", "inspect", "orders", "--payload").code == 2


def test_a_payload_that_is_no_text_is_marked_as_base64_in_json(cli: Commands, orders: Orders) -> None:
    message_id = cli.ok("queue", "push", "orders", "-", input=b"\xff\x00").out.strip()
    assert cli.json("queue", "inspect", "orders", message_id)["payload"] == {"base64": "/wA="}
    assert "2 bytes: ff 00" in cli.ok("queue", "inspect", "orders", message_id).out


def test_nothing_in_a_message_reaches_the_terminal_as_a_command(cli: Commands, broker: Opener) -> None:
    bad = "\x1b[2J\x07\u202e\x9b31m[red]\r"
    with broker() as opened:
        opened.create_queue("q", retry="none")
        (message_id,) = opened.enqueue_many(
            "q", [NewMessage(bad.encode(), headers={"h" + bad: bad}, fairness_key=bad, stream=bad)]
        )
        opened.claim("q", consumer=bad)
        opened.nack("q", message_id, bad)
    for args in (
        ["queue", "show", "q"],
        ["queue", "inspect", "q", message_id],
        ["queue", "peek", "q.dlq"],
        ["explain", "q", message_id],
        ["queue", "drain", "q.dlq", "-y"],
    ):
        ran = cli(*args)
        assert ran.code == 0
        assert not set("\x1b\x07\u202e\x9b\r") & set(ran.out + ran.err), args
        assert "[red]" in ran.out or "explain" in args, "markup is text"


def test_peek_goes_on_behind_a_message_and_looks_at_the_dead(
    cli: Commands, broker: Opener, orders: Orders
) -> None:
    with broker() as opened:
        opened.create_queue("q")
        ids = opened.enqueue_many("q", [NewMessage(str(n).encode()) for n in range(5)])
    assert [
        info["payload"] for info in cli.json("queue", "peek", "q", "-n", "2", "--after", ids[1][-8:])
    ] == ["2", "3"]
    assert [info["id"] for info in cli.json("queue", "peek", "orders", "--where", "dead")] == [orders.dead]
    assert [
        info["id"] for info in cli.json("queue", "peek", "orders", "--where", "leased", "--key", "acme")
    ] == [orders.active]
    assert cli("queue", "peek", "orders", "--where", "elsewhere").code == 3


def test_drain_asks_and_gives_every_payload_back_whole(cli: Commands, broker: Opener, orders: Orders) -> None:
    long = "x" * 5000
    cli.ok("queue", "push", "orders", long)
    refused = cli("queue", "drain", "orders")
    assert refused.code == 2
    assert "remove 2 ready messages from queue 'orders'" in refused.err
    ran = cli("queue", "drain", "orders", "-y")
    assert ran.code == 0
    assert long in ran.out
    assert "drained 2 messages" in ran.err
    with broker() as opened:
        assert opened.stats("orders").ready == 0
    assert cli.json("queue", "drain", "orders", "-y") == []


def test_drain_into_a_file_touches_nothing_when_the_file_cannot_be_written(
    cli: Commands, orders: Orders, tmp_path: Path
) -> None:
    refused = cli("queue", "drain", "orders", "-y", "--to", tmp_path / "no" / "file")
    assert refused.code == 1
    assert cli.json("queue", "list")[0]["stats"]["ready"] == 1
    cli.ok("queue", "drain", "orders", "-y", "--to", tmp_path / "out.jsonl")
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["payload"] == "pending"


def test_a_traceback_is_cut_to_its_first_line_in_lists_and_whole_where_one_message_is_shown(
    cli: Commands, broker: Opener
) -> None:
    with broker() as opened:
        opened.create_queue("mails", retry={"policy": "none"})
        opened.enqueue("mails", b"x")
        opened.settle(
            [
                Fail(
                    opened.claim("mails")[0],
                    'ValueError: no\n\nTraceback:\n  File "a.py", line 1\nid  fake\x1b[2J',
                    "handler_exception",
                )
            ]
        )
        (letter,) = opened.peek("mails.dlq")
    assert cli.ok("queue", "show", "mails").lines[-1].endswith("handler_exception: ValueError: no …")
    assert cli.ok("explain", "mails", letter.id).lines[-1] == "  - last error: ValueError: no …"
    assert cli.ok("queue", "inspect", "mails", letter.id).lines[-6:] == [
        "last error",
        "  ValueError: no",
        "",
        "  Traceback:",
        '    File "a.py", line 1',
        "  id  fake\\x1b[2J",
    ]
