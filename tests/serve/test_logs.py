from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from fairlead.config import LogSettings
from fairlead.errors import HookInvalid, InvalidRequest, StoreFailed, StoreFull
from fairlead.server.logs import event, set_up

LOG = logging.getLogger("fairlead.test")
SECRET = "the customer's payload"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("fairlead")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before
    logging.captureWarnings(False)


def text_log(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    set_up(LogSettings(level=level), stream)  # type: ignore[arg-type]
    return stream


def json_log() -> io.StringIO:
    stream = io.StringIO()
    set_up(LogSettings(format="json"), stream)
    return stream


def test_an_event_is_one_line_with_time_level_name_and_fields() -> None:
    out = text_log()
    event(LOG, logging.INFO, "channel opened", peer="127.0.0.1:9", verb="claim", note="two\nlines", empty="")
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    channel opened peer=127\.0\.0\.1:9 verb=claim note=two\\nlines empty=""\n',
        out.getvalue(),
    )


def test_as_json_a_line_is_one_object() -> None:
    out = json_log()
    event(LOG, logging.WARNING, "calls are cut off", calls_in_flight=2)
    line = json.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "event": "calls are cut off",
        "logger": "fairlead.test",
        "calls_in_flight": 2,
    }


def test_events_below_the_level_are_left_out() -> None:
    out = text_log("warning")
    event(LOG, logging.INFO, "small")
    event(LOG, logging.ERROR, "large")
    assert "small" not in out.getvalue()
    assert "large" in out.getvalue()


def test_other_libraries_are_heard_from_warning_on() -> None:
    out = text_log("debug")
    logging.getLogger("elsewhere").info("chatter")
    logging.getLogger("elsewhere").warning("trouble")
    assert "chatter" not in out.getvalue()
    assert "trouble" in out.getvalue()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (InvalidRequest("payload", "bytes", SECRET), "invalid_request"),
        (HookInvalid("on_enqueue", 3, SECRET), "hook_invalid"),
        (ValueError(SECRET), "ValueError"),
        (KeyError(SECRET), "KeyError"),
        (StoreFull("/data", 1, 2), "store_full: expected at least 2 free bytes"),
        (StoreFailed("no sync"), "store_failed: the store failed (no sync)"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
)
@pytest.mark.parametrize("make", [text_log, json_log])
def test_an_exception_is_logged_with_its_place_and_without_what_a_user_sent(
    make: object, error: Exception, shown: str
) -> None:
    out = make()  # type: ignore[operator]
    try:
        raise error
    except Exception:
        LOG.exception("a call failed: %s", error)
    line = out.getvalue()
    assert line.count("\n") == 1
    assert shown in line
    assert SECRET not in line
    assert "serve/test_logs.py:" in line


def test_an_error_among_the_arguments_of_a_message_is_shown_the_same_way() -> None:
    out = text_log()
    LOG.warning("due work is put off: %s", InvalidRequest("headers", "text", SECRET))
    LOG.warning("due work of %(queue)s is put off", {"queue": "orders"})
    assert "due work is put off: invalid_request" in out.getvalue()
    assert "due work of orders is put off" in out.getvalue()
    assert SECRET not in out.getvalue()
