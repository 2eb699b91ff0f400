"""The content of `/metrics`: counts of commits, and current measurements."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import inf
from pathlib import Path

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

import fairlead
from fairlead.clock import Clock, SystemClock
from fairlead.config import MetricSettings
from fairlead.engine.broker import Broker
from fairlead.errors import FairleadError
from fairlead.middleware.metrics import RequestCounts
from fairlead.model.distribution import Distribution
from fairlead.model.measures import Measures, QueueMeasures
from fairlead.server import metric_names as names
from fairlead.server.limits import Limit, Limits
from fairlead.server.metric_facts import FactCounts
from fairlead.server.metric_labels import QueueLabels
from fairlead.server.metric_names import Definition

#: Values of a metric's labels, and its value.
Sample = tuple[tuple[str, ...], float]


class Metrics:
    """A registry of its own, fed by the broker that it watches. Counters begin at 0 with the process.

    At most `settings.max_queues` queues have a label of their own (the rest are `__other__`), and
    `settings.max_throttle_keys` throttle keys are shown; message ids, fairness keys and consumers are no
    labels. `data` is the directory whose disk is watched.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock | None = None,
        data: Path | None = None,
        limits: Limits | None = None,
        settings: MetricSettings | None = None,
        certificate_ends: Callable[[], datetime] | None = None,
        requests: Mapping[str, RequestCounts] | None = None,
    ) -> None:
        chosen = settings or MetricSettings()
        self.registry = CollectorRegistry()
        self._broker = broker
        self._data = data
        self._limits = limits
        self._certificate_ends = certificate_ends
        self._requests = {} if requests is None else requests
        self._labels = QueueLabels(chosen.max_queues)
        self._counts = FactCounts(clock or SystemClock(), self._labels)
        self._throttles = _Bounded(chosen.max_throttle_keys)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        broker.observe(self._counts.observe, timed=self._counts.timed)

    def describe(self) -> Iterable[Metric]:
        return [_family(definition) for definition in names.METRICS]

    def collect(self) -> Iterator[Metric]:
        """Copies first: the engine continues to count meanwhile, and a dict that grows must not be iterated."""
        counters: dict[str, list[Sample]] = {}
        for (name, values), count in list(self._counts.counters.items()):
            counters.setdefault(name, []).append((values, count))
        distributions: dict[str, list[tuple[tuple[str, ...], Distribution]]] = {}
        for (name, values), found in list(self._counts.distributions.items()):
            distributions.setdefault(name, []).append((values, found))
        for verb, requests in sorted(self._requests.items()):
            for outcome, count in sorted(requests.outcomes.items()):
                counters.setdefault(names.REQUESTS.name, []).append(((verb, outcome), count))
            distributions.setdefault(names.REQUEST_SECONDS.name, []).append(((verb,), requests.seconds))
        measured = {definition.name: samples for definition, samples in self._measured()}
        for definition in names.METRICS:
            family = _family(definition)
            if isinstance(family, HistogramMetricFamily):
                for values, found in distributions.get(definition.name, ()):
                    family.add_metric(values, *_cumulated(found))
            else:
                for values, value in measured.get(definition.name, []) or counters.get(definition.name, []):
                    family.add_metric(values, value)
            if family.samples:
                yield family

    def _measured(self) -> Iterator[tuple[Definition, list[Sample]]]:
        yield names.BUILD_INFO, [((fairlead.__version__, platform.python_version()), 1)]
        if self._data is not None:
            yield names.STORE_FREE, [((), shutil.disk_usage(self._data).free)]
        if self._certificate_ends is not None:
            yield names.CERTIFICATE_EXPIRY, [((), self._certificate_ends().timestamp())]
        if self._limits is not None:
            yield names.CALLS, [((), self._limits.in_flight)]
            yield names.CHANNELS, [((), self._limits.channels)]
            yield names.CALL_BYTES, [((), self._limits.bytes_in_flight)]
            yield names.CALLS_REFUSED, [((), self._limits.overloaded)]
            yield names.REFUSED, [((limit,), self._limits.refusals[limit]) for limit in Limit]
            yield names.INVALID, [((field,), count) for field, count in sorted(self._limits.invalid.items())]
            yield (
                names.CONNECTIONS,
                [((door,), count) for door, count in sorted(self._limits.connections.items())],
            )
        try:
            measures = self._broker.measures()
        except FairleadError:
            # Closed, or stopped by its store: the counts are still true.
            yield names.BROKER_UP, [((), 0)]
            return
        yield names.BROKER_UP, [((), 1)]
        yield from self._of_broker(measures)
        yield from self._of_queues(measures)

    def _of_broker(self, measures: Measures) -> Iterator[tuple[Definition, list[Sample]]]:
        closed = [one.key for one in measures.closed_throttles]
        shown = self._throttles.choose(
            list(dict.fromkeys([*closed, *[bucket.key for bucket in measures.throttles]]))
        )
        yield (
            names.THROTTLE_TOKENS,
            [((bucket.key,), bucket.tokens) for bucket in measures.throttles if bucket.key in shown],
        )
        yield names.THROTTLE_CLOSED, [((key,), 1) for key in closed if key in shown]
        yield names.CLOSED_KEYS, [((), len(closed))]
        yield names.THROTTLE_KEYS, [((), len(measures.throttles))]
        yield (
            names.INTENTS,
            [((kind,), measures.intents.get(kind, 0)) for kind in ("purge", "delete", "redrive")],
        )
        yield names.LANES, [((), measures.lanes)]
        yield names.READ_AHEAD, [((), measures.read_ahead_rows)]
        yield names.STAGED_WRITES, [((), measures.staged_writes)]
        yield names.STAGED_BYTES, [((), measures.staged_bytes)]
        yield names.QUEUES, [((), len(measures.queues))]
        yield names.QUEUES_IN_OTHER, [((), self._labels.in_other)]

    def _of_queues(self, measures: Measures) -> Iterator[tuple[Definition, list[Sample]]]:
        labelled = [(self._labels.of(queue.queue_id), queue) for queue in measures.queues]

        def each(value: Callable[[QueueMeasures], float]) -> list[Sample]:
            return _summed([((label,), value(queue)) for label, queue in labelled])

        states = ("ready", "waiting", "leased", "done", "dead")
        yield (
            names.MESSAGES,
            _summed(
                [((label, state), getattr(queue, state)) for label, queue in labelled for state in states]
            ),
        )
        yield names.BYTES, each(lambda queue: queue.bytes)
        yield names.DEAD_BYTES, each(lambda queue: queue.dead_bytes)
        yield names.OLDEST_READY, _oldest(labelled, measures.now_ms)
        yield names.CONSUMERS, each(lambda queue: queue.consumers)
        yield names.DURABLE_CONSUMERS, each(lambda queue: queue.durable_consumers)
        yield names.NUMBERED_CLAIMS, each(lambda queue: queue.numbered_claims)
        yield names.NUMBERED_MESSAGES, each(lambda queue: queue.numbered_messages)
        yield names.CONSUMER_EXPIRY, _earliest([(label, queue.gives_up_ms) for label, queue in labelled])
        yield names.ACTIVE_KEYS, each(lambda queue: queue.active_keys)
        yield names.PAUSED, each(lambda queue: queue.paused)
        yield (
            names.STREAM_FRONTS,
            _summed(
                [
                    ((label, change), count)
                    for label, queue in labelled
                    for change, count in queue.stream_fronts.items()
                    if count
                ]
            ),
        )
        yield names.PARKED_LANES, each(lambda queue: queue.parked_lanes)
        yield names.THROTTLE_HOLDS, each(lambda queue: queue.holds)
        yield (
            names.HOOK_BREAKER,
            _summed(
                [
                    ((label, hook), is_open)
                    for label, queue in labelled
                    for hook, is_open in queue.hook_breakers.items()
                ]
            ),
        )
        yield (
            names.FAILURE_BREAKER,
            _summed(
                [
                    ((label, reason), is_open)
                    for label, queue in labelled
                    for reason, is_open in queue.failure_breakers.items()
                ]
            ),
        )


class _Bounded:
    """The first names of a changing set, up to a bound; names that disappear free their places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chosen: dict[str, None] = {}

    def choose(self, present: Sequence[str]) -> set[str]:
        there = set(present)
        kept = [name for name in self._chosen if name in there]
        fresh = [name for name in present if name not in self._chosen]
        self._chosen = dict.fromkeys((kept + fresh)[: self._most])
        return set(self._chosen)


def _summed(samples: list[Sample]) -> list[Sample]:
    """Queues that share a label are shown as one."""
    sums: dict[tuple[str, ...], float] = {}
    for values, value in samples:
        sums[values] = sums.get(values, 0) + value
    return list(sums.items())


def _earliest(times: list[tuple[str, int | None]]) -> list[Sample]:
    found: dict[tuple[str, ...], float] = {}
    for label, at_ms in times:
        if at_ms is not None:
            found[label,] = min(found.get((label,), inf), at_ms / 1000)
    return list(found.items())


def _oldest(labelled: list[tuple[str, QueueMeasures]], now_ms: int) -> list[Sample]:
    ages: dict[tuple[str, ...], float] = {}
    for label, queue in labelled:
        if queue.oldest_ready_ms is None and queue.ready:
            continue
        age = 0 if queue.oldest_ready_ms is None else max(0, now_ms - queue.oldest_ready_ms) / 1000
        ages[label,] = max(ages.get((label,), 0), age)
    return list(ages.items())


def _family(definition: Definition) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if definition.kind == "counter":
        return CounterMetricFamily(definition.name, definition.help, labels=definition.labels)
    if definition.kind == "gauge":
        return GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
    return HistogramMetricFamily(definition.name, definition.help, labels=definition.labels)


def _cumulated(found: Distribution) -> tuple[list[tuple[str, float]], float]:
    total, buckets = 0, []
    for bound, count in zip([*found.bounds, inf], list(found.counts), strict=True):
        total += count
        buckets.append(("+Inf" if bound == inf else repr(bound), float(total)))
    return buckets, found.sum
