"""One target, fuzzed with the help of coverage: `python -m tests.hostile.guided TARGET SECONDS CORPUS
FINDINGS`.

Only code of ours is watched. What is found is written to FINDINGS as `TARGET-...`, and ends the process with
a code that is not 0; the corpus grows from run to run. Needs atheris, which takes the process over, so each
run is one of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

#: What reads strangers' bytes. Instrumented when it is imported, so nothing of fairlead may be imported
#: before.
_WATCHED = (
    "fairlead.wire",
    "fairlead.decide.error_pattern",
    "fairlead.decide.redact",
    "fairlead.decide.rights",
    "fairlead.decide.dead_filter",
    "fairlead.config.reading",
    "fairlead.config.server",
    "fairlead.model",
    "fairlead.hooks.results",
    "fairlead.server.answers",
    "fairlead.middleware.authenticate",
    "fairlead.server.flight",
    "fairlead.server.fila",
    "fairlead.server.resp",
    "fairlead.fields",
    "fairlead.decide.arguments",
    "fairlead.runbook",
)

ALL = "all"


def main() -> None:
    name, seconds, corpus, findings = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    more = sys.argv[5:]
    with atheris.instrument_imports(include=list(_WATCHED), enable_loader_override=False):
        from tests.hostile import targets
    names = sorted(targets.TARGETS)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(
        _seeds(names, targets.TARGETS) if name == ALL else targets.TARGETS[name].seeds
    ):
        (corpus / f"seed-{number}").write_bytes(seed)

    def one(raw: bytes) -> None:
        if name != ALL:
            targets.run(name, raw)
        elif raw:
            targets.run(names[raw[0] % len(names)], raw[1:])

    # A single input may take seconds on a loaded machine; minutes are a finding.
    bounds = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", "-max_len=8192"]
    atheris.Setup(
        [
            sys.argv[0],
            *bounds,
            f"-artifact_prefix={findings}/{name}-",
            "-verbosity=0",
            "-print_final_stats=1",
            *more,
            str(corpus),
        ],
        one,
    )
    atheris.Fuzz()


def _seeds(names: list[str], all_targets: dict[str, object]) -> list[bytes]:
    return [bytes([at]) + seed for at, name in enumerate(names) for seed in all_targets[name].seeds]  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
