"""Reading metrics back the way Prometheus does: from the text."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.server.metric_names import METRICS
from fairlead.server.metrics import Metrics

#: "name{label=value,...}" with the labels sorted.
Values = dict[str, float]

_COUNTERS = frozenset(definition.name for definition in METRICS if definition.kind == "counter")


def show(metrics: Metrics) -> Values:
    return read(generate_latest(metrics.registry).decode())


def read(text: str) -> Values:
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            series = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert series not in found, f"{series} is shown twice"
            found[series] = sample.value
    return found


def counted(values: Values) -> Values:
    """Only the counters, and only those that are not 0."""
    return {
        series: value for series, value in values.items() if series.partition("{")[0] in _COUNTERS and value
    }


def grown(before: Values, after: Values) -> Values:
    """By how much each counter has grown, without the common beginning of the names."""
    differences = ((series, value - before.get(series, 0)) for series, value in counted(after).items())
    return {series.removeprefix("fairlead_"): difference for series, difference in differences if difference}


def of(values: Values, name: str) -> Iterator[tuple[str, float]]:
    return ((series, value) for series, value in values.items() if series.partition("{")[0] == name)
