"""Every verb, one class each; the list of files is the list of features.

queues         create, change, pause, resume, purge, delete, list queues
enqueue        put messages in, look up a duplicate, quarantine
claim          lease messages
settle         report outcomes, settle by id, say goodbye
exchange       a whole turn of work in one call
operate        retry, drop, done, bury, hold, unhold, fail, drain, prune, release a stream
dead_letters   redrive, and the long operations under way
inspect        stats, find, peek, failure metrics, explain
browse         read a whole queue page by page
config         the runtime configuration
throttles      close and open throttle keys
keys           API keys
audit          who did what
runbooks       the runbooks in force
consumers      durable consumers and their numbered claims
staging        writes that become visible together
sessions       numbered requests, each with one effect
maintain       checkpoints

A verb module imports `request`, the records, the rules and the errors. It imports the engine only for type
checking or inside `run`, so that a client that knows all verbs brings no engine with it. Verbs that every
message passes import the engine's module, not a function from it, which takes Python three times as long.
Importing this package fills `fairlead.request.VERBS`.
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
