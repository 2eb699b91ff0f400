"""The work of each verb in the new engine: one function per verb, `(tx, request) -> answer`.

`WORK` lists what the engine can do. When it can do everything, each function becomes the `run` of its verb and
this folder goes. A function reads and checks first and adds facts last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.engine.transaction import Transaction
from fairlead.engine.work import claim, config, enqueue, inspect, operate, queues, settle
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigGet, ConfigList, ConfigSet
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Bury, Done, Drop, FailLeased, Hold, Reset, Retry, Unhold
from fairlead.verbs.queues import CreateQueue, ListQueues, Pause, Resume
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle

Work = Callable[[Transaction, Any], Any]

WORK: dict[type[Request[Any]], Work] = {
    CreateQueue: queues.create_queue,
    ListQueues: queues.list_queues,
    Pause: queues.pause,
    Resume: queues.resume,
    Enqueue: enqueue.enqueue,
    EnqueueMany: enqueue.enqueue_many,
    Quarantine: enqueue.quarantine,
    Twin: enqueue.twin,
    Claim: claim.claim,
    Settle: settle.settle,
    Ack: settle.ack,
    Nack: settle.nack,
    Goodbye: settle.goodbye,
    Retry: operate.retry,
    Reset: operate.reset,
    Drop: operate.drop,
    Done: operate.done,
    Bury: operate.bury,
    Hold: operate.hold,
    Unhold: operate.unhold,
    FailLeased: operate.fail,
    Stats: inspect.stats,
    ConfigGet: config.get_value,
    ConfigSet: config.set_value,
    ConfigDelete: config.delete_value,
    ConfigList: config.list_values,
}
