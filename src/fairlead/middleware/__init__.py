"""The layers around the engine. Each is `(request, caller) -> answer`, so they stack.

    stack          builds the stack, in one place; the layers in order, the outermost first:
    limits         holds a place among the calls in flight
    authenticate   turns credentials into a caller, and refuses a key that is no longer valid
    authorize      refuses requests without the right, and hides parts of answers
    audit          records audited calls and views of messages
    redact         removes what the server's rules hide
    trace          writes spans of requests that move messages
    metrics        counts requests by verb and outcome

    rights         the rights of one caller, as verbs ask for them

The rules of a verb (its right, the visible part of its answer, its audit entry, how long it may wait) are in
the verb's class (`fairlead.verbs`), not in a layer. Limits come first, so that a refusal under load costs
nothing. The engine remembers the answers of sessions behind all layers: rights are checked before it returns
a remembered answer, and a refused repeat is audited. Metrics come last, so that their times are the engine's.
"""
