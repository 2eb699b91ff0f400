from __future__ import annotations

import pickle

import pytest

from fairlead.errors import InvalidRequest
from fairlead.spark.options import OPTIONS, SparkOptions, read_options

WHERE = {"endpoint": "127.0.0.1:5554", "queue": "orders"}


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(InvalidRequest) as refused:
        read_options(given)
    return str(refused.value)


def test_names_are_read_in_whatever_case_spark_hands_them_over():
    read = read_options(
        WHERE | {"maxmessagespertrigger": "500", "TLS.SERVERNAME": "broker", "IncludePayload": "False"}
    )
    assert (read.max_messages_per_trigger, read.tls_server_name, read.include_payload) == (
        500,
        "broker",
        False,
    )
    assert read.given == {"endpoint", "queue", "maxMessagesPerTrigger", "tls.serverName", "includePayload"}


def test_an_unknown_option_is_refused_with_the_nearest_name():
    said = refusal(WHERE | {"maxMesagesPerTriger": "1"})
    assert "instead of maxmesagespertriger, did you mean maxMessagesPerTrigger?" in said


def test_all_unknown_options_are_named_at_once_and_their_values_are_not():
    said = refusal(WHERE | {"zzzzzzzz": "hush", "includePaylod": "hush"})
    assert "did you mean includePayload?" in said
    assert "zzzzzzzz" in said
    assert "hush" not in said


@pytest.mark.parametrize("name", ["apiKey", "api_key", "token", "password", "secret"])
def test_a_secret_itself_is_refused_and_the_way_to_name_it_is_told(name: str):
    said = refusal(WHERE | {name: "fl_abc"})
    assert "apiKeyFile" in said
    assert "apiKeyEnv" in said
    assert "fl_abc" not in said


def test_options_that_spark_adds_for_itself_are_no_concern_of_the_source():
    assert read_options(WHERE | {"checkpointLocation": "/somewhere", "queryName": "etl"}).given == {
        "endpoint",
        "queue",
    }


def test_the_path_of_load_is_the_queue():
    assert read_options({"endpoint": "127.0.0.1:5554", "path": "eu/orders"}).queue == "eu/orders"
    assert "option queue" in refusal(WHERE | {"path": "payments"})


def test_a_list_of_queues_is_refused_with_what_to_do_instead():
    assert "give one queue" in refusal({"endpoint": "127.0.0.1:5554", "paths": '["orders","mails"]'})


def test_a_number_without_a_unit_is_answered_with_durations_that_an_option_can_say():
    said = refusal(WHERE | {"timeout": "3"})
    assert '"30s"' in said
    assert "timedelta" not in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "127.0.0.1:"),
        ("endpoint", "grpc://127.0.0.1:5554"),
        ("flightEndpoint", "127.0.0.1"),
        ("queue", "or ders"),
        ("consumer", " "),
        ("consumer", "x" * 300),
        ("consumerTtl", "7"),
        ("consumerTtl", "0s"),
        ("consumerTtl", "366d"),
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", "100001"),
        ("maxMessagesPerTrigger", "many"),
        ("maxBytesPerTrigger", "257m"),
        ("maxBytesPerTrigger", "-1"),
        ("numPartitions", "0"),
        ("startingFrom", "latest"),
        ("startingFrom", "2026-03-01T00:00:00"),
        ("includePayload", "1"),
        ("failOnDataLoss", "no"),
        ("view", "done"),
        ("operation", "consume"),
        ("timeout", "soon"),
        ("apiKeyFile", ""),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_the_option_s_name(name: str, value: str):
    assert f"option {name} " in refusal(WHERE | {name: value})


@pytest.mark.parametrize(
    ("value", "size"), [("100", 100), ("100b", 100), ("64m", 64 << 20), ("64MiB", 64 << 20), ("1 kb", 1024)]
)
def test_sizes_are_read_as_spark_writes_them(value: str, size: int):
    assert read_options(WHERE | {"maxBytesPerTrigger": value}).max_bytes_per_trigger == size


def test_a_time_to_start_from_counts_its_offset():
    assert read_options(WHERE | {"startingFrom": "1970-01-01T02:00:01+02:00"}).starting_from == 1000
    assert read_options(WHERE | {"startingFrom": "EARLIEST"}).starting_from == 0


def test_a_stream_starts_nowhere_but_at_the_earliest_and_says_why():
    stream = WHERE | {"consumer": "etl"}
    with pytest.raises(InvalidRequest, match=r"startingFrom.*no past to skip"):
        read_options(stream | {"startingFrom": "2026-03-01T00:00:00Z"}).for_direction("stream read")
    read_options(stream | {"startingFrom": "earliest"}).for_direction("stream read")


@pytest.mark.parametrize(
    ("given", "direction", "missing"),
    [
        ({"queue": "orders"}, "batch read", "option endpoint"),
        ({"endpoint": "127.0.0.1:1"}, "batch read", "option queue"),
        (WHERE, "stream read", "option consumer"),
    ],
)
def test_what_a_direction_needs_must_be_given(given: dict[str, str], direction, missing: str):
    with pytest.raises(InvalidRequest, match=missing):
        read_options(given).for_direction(direction)


def test_an_option_of_another_direction_is_refused_with_where_it_belongs():
    with pytest.raises(
        InvalidRequest, match="consumer to be left out of a batch read: it belongs to stream reads"
    ):
        read_options(WHERE | {"consumer": "etl"}).for_direction("batch read")


def test_two_places_for_one_key_and_half_a_certificate_are_refused():
    assert "one of the two" in refusal(WHERE | {"apiKeyFile": "/a", "apiKeyEnv": "B"})
    assert "tls.cert and tls.key" in refusal(WHERE | {"tls.cert": "/a"})


def test_checked_options_travel_in_pickles_as_they_are():
    read = read_options(WHERE | {"numPartitions": "3"})
    assert pickle.loads(pickle.dumps(read)) == read


def test_a_default_that_is_shown_is_the_one_that_counts():
    defaults = SparkOptions()
    for option in OPTIONS.values():
        if option.default and " " not in option.default:
            field = next(
                name
                for name in SparkOptions.__dataclass_fields__
                if name.replace("_", "") == option.name.lower().replace(".", "")
            )
            assert option.read(option.name, option.default) == getattr(defaults, field), option.name


def test_without_a_number_of_partitions_there_are_at_most_sixteen():
    assert 1 <= read_options(WHERE).partition_count <= 16
    assert read_options(WHERE | {"numPartitions": "40"}).partition_count == 40
