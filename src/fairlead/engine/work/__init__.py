"""The work of each verb: one function for each verb, found by the class of the request.

`WORK` lists the verbs that are one transaction: `(tx, request) -> answer`. A function in it reads and checks
first and adds facts last. `WORK_IN_STEPS` lists the verbs that scan, wait or change more than one transaction
may: `(engine, request, caller) -> answer`; a function in it opens a short transaction for each step.
`remembered.py` is no verb: it carries out the requests of sessions, so that a repeat has no second effect.

The record of a verb, with its fields and rights, is in `fairlead.verbs`: a client has all records and no
engine.
"""

from __future__ import annotations

from fairlead.engine.transaction import StepsTable, WorkTable
from fairlead.engine.work import (
    audit,
    claim,
    config,
    consumer_claims,
    consumer_read,
    consumers,
    dead_letters,
    enqueue,
    exchange,
    explain,
    failures,
    inspect,
    keys,
    look,
    maintain,
    operate,
    queues,
    runbooks,
    sessions,
    settle,
    staging,
    streams,
    throttles,
)

WORK: WorkTable = {
    **queues.WORK,
    **enqueue.WORK,
    **claim.WORK,
    **settle.WORK,
    **config.WORK,
    **throttles.WORK,
    **dead_letters.WORK,
    **keys.WORK,
    **runbooks.WORK,
    **streams.WORK,
    **consumers.WORK,
    **exchange.WORK,
    **sessions.WORK,
}

WORK_IN_STEPS: StepsTable = {
    **queues.WORK_IN_STEPS,
    **operate.WORK_IN_STEPS,
    **dead_letters.WORK_IN_STEPS,
    **look.WORK_IN_STEPS,
    **runbooks.WORK_IN_STEPS,
    **inspect.WORK_IN_STEPS,
    **audit.WORK_IN_STEPS,
    **maintain.WORK_IN_STEPS,
    **explain.WORK_IN_STEPS,
    **failures.WORK_IN_STEPS,
    **consumers.WORK_IN_STEPS,
    **consumer_claims.WORK_IN_STEPS,
    **consumer_read.WORK_IN_STEPS,
    **staging.WORK_IN_STEPS,
    **settle.WORK_IN_STEPS,
}
