"""Every verb, one class each. The list of files is the list of features.

    queues         create, change, pause, resume, purge, delete, list queues
    enqueue        enqueue messages, look up a duplicate, quarantine
    claim          lease messages
    settle         report outcomes, settle by id, say goodbye
    exchange       several requests in one call
    operate        retry, drop, done, bury, hold, unhold, fail, drain, prune, release a stream
    dead_letters   redrive, and the running long operations
    inspect        stats, find, peek, failure metrics, explain
    browse         read a whole queue page by page
    config         the runtime configuration
    throttles      close and open throttle keys
    keys           API keys
    audit          read the audit
    runbooks       the runbooks in force
    consumers      durable consumers and their numbered claims
    staging        writes that become visible together
    sessions       numbered requests, each with one effect
    maintain       checkpoints

A verb module imports `request`, the records, the rules and the errors, but not the engine, so that a client
with all verbs brings no engine with it. Importing this package fills `fairlead.request.VERBS`.
"""

from fairlead.verbs import (
    audit,
    browse,
    claim,
    config,
    consumers,
    dead_letters,
    enqueue,
    exchange,
    inspect,
    keys,
    maintain,
    operate,
    queues,
    runbooks,
    sessions,
    settle,
    staging,
    throttles,
)

__all__ = [
    "audit",
    "browse",
    "claim",
    "config",
    "consumers",
    "dead_letters",
    "enqueue",
    "exchange",
    "inspect",
    "keys",
    "maintain",
    "operate",
    "queues",
    "runbooks",
    "sessions",
    "settle",
    "staging",
    "throttles",
]
