"""The layers around the engine. Each is `(request, caller) -> answer`, so they stack.

stack          builds the stack, in one place; the layers in their order, the outermost first:
limits         holds a place among the calls in flight
authenticate   turns credentials into a caller, and refuses a key that is no longer valid
authorize      refuses what the caller may not do, and hides what it may not see
audit          records acts and looks
redact         strikes out what nobody may see
trace          writes spans of requests that move messages
metrics        counts requests by verb and outcome

rights         the rights of one caller, as verbs ask for them

The rules of a verb (its right, what of its answer is visible, its audit entry, how long it may wait) are in
the verb's class (`fairlead.verbs`), not in a layer. Limits come first, so that a refusal under load costs
nothing. The engine remembers the answers of sessions, behind all layers: rights are checked before it gives a remembered
answer, and a repeat that it refuses is audited. Metrics come last, so that their times are
the engine's.
"""
