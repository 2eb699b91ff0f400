"""Records runs in the engine as lines of text, and keeps them in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from fairlead.engine.engine import Engine
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from tests.conformance.engines.running import Called, Run, Side, for_side
from tests.conformance.engines.stand_in_hooks import StandInHooks

FOLDER = Path(__file__).parent
STEPS = 120
#: Each file has the runs of so many seeds.
RUNS_PER_FILE = 20
FIRST_SEEDS = range(50_000, 50_200, RUNS_PER_FILE)
#: The answers of these runs are kept as they are.
SEEDS_IN_FULL = (50_000, 50_001, 50_002)


def file_of(first_seed: int) -> Path:
    return FOLDER / f"runs-{first_seed}.txt"


def file_in_full(seed: int) -> Path:
    return FOLDER / f"in-full-{seed}.txt"


def record_file(first_seed: int, after_step: Callable[[Engine], None] = lambda engine: None) -> str:
    lines = []
    for seed in range(first_seed, first_seed + RUNS_PER_FILE):
        lines.append(f"seed {seed}")
        lines += [_line(verb, delivered, answer) for verb, delivered, answer in record(seed, after_step)]
    return "".join(f"{line}\n" for line in lines)


def record_in_full(seed: int) -> str:
    return "".join(f"{verb}\n    {answer}\n" for verb, _, answer in record(seed))


def write_all() -> None:
    for first_seed in FIRST_SEEDS:
        file_of(first_seed).write_text(record_file(first_seed))
    for seed in SEEDS_IN_FULL:
        file_in_full(seed).write_text(record_in_full(seed))


def record(
    seed: int, after_step: Callable[[Engine], None] = lambda engine: None
) -> Iterator[tuple[str, list[int], str]]:
    """For each step its verb, the messages that were delivered, by name, and the answer as text."""
    run, clock = Run(seed, has_scripts=True, forgets=True), ManualClock()
    engine = Engine(DictionaryStore(), clock=clock, rng=Random(seed))
    engine.hooking.hooks = StandInHooks()  # type: ignore[assignment]
    side = Side(engine.do, clock)
    for request in run.first_steps():
        yield _verb(request), [], as_text(side.carry_out(request))
    for _ in range(STEPS):
        step = run.next_step(len(side.deliveries))
        if isinstance(step, int):
            clock.advance(ms=step)
            yield f"{step} ms pass", [], ""
            continue
        before, request = len(side.deliveries), for_side(step, side)
        answer = as_text(side.carry_out(request))
        yield _verb(request), [side.names[one.raw_id] for one in side.deliveries[before:]], answer
        after_step(engine)
    engine.close()


def as_text(answer: Any) -> str:
    """The same text for the same answer in every process: sets have no order of their own."""
    match answer:
        case set() | frozenset():
            return f"{{{', '.join(sorted(as_text(part) for part in answer))}}}"
        case list() | tuple():
            return f"[{', '.join(as_text(part) for part in answer)}]"
    return repr(answer)


def _verb(request: Request[Any] | Called) -> str:
    return (request.request if isinstance(request, Called) else request).verb_name


def _line(verb: str, delivered: Sequence[int], answer: str) -> str:
    digest = sha256(answer.encode()).hexdigest()[:8]
    return " ".join([f"{verb}:", *map(str, delivered), digest if answer else ""]).rstrip()
