"""The layers around the engine. Each is `(request, caller) -> answer`, so they stack.

stack          builds the stack, in one place: authorize, once, audit, redact
rights         the rights of one caller, as verbs ask for them
authorize      refuses what the caller may not do, and hides what it may not see
once           keeps request ids of different keys apart
audit          records acts and looks
redact         strikes out what nobody may see
trace          writes spans of calls that move messages; it wraps the broker itself, below the stack

The rules of a verb (its right, what of its answer is visible, its audit entry) are in the verb's class
(`fairlead.verbs`), not in a layer.
"""
