"""What a worker of a runbook is to do, put together from the runbook's parts."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.errors import EngineNotInstalled, WorkerNotFound
from fairlead.model.names import taken_name
from fairlead.runbook.model import QueueSpec, Runbook, WorkerSpec, full_name
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.protocol import PipelineSetup


@dataclass(frozen=True, slots=True)
class Job:
    """`queue` is the name the engine knows. `base` is where its commands run and its modules are looked for
    first.

    `external` is set when the queue lives elsewhere; `queue` is then where the engine keeps what was taken
    from it.
    """

    spec: WorkerSpec
    queue: str
    plan: PipelinePlan
    base: str
    external: QueueSpec | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def setup(self) -> PipelineSetup:
        return PipelineSetup(
            self.plan.name, self.plan.steps, self.spec.reasons, self.base, self.spec.memory_limit_bytes
        )

    @classmethod
    def of(cls, runbook: Runbook, worker: str, base: str, *, engine: str | None = "local") -> Job:
        """For whoever runs workers of this engine; None: of any. Raises `WorkerNotFound`, or
        `EngineNotInstalled` for another one.
        """
        spec = runbook.workers.get(worker)
        if spec is None:
            raise WorkerNotFound(worker, sorted(runbook.workers))
        if engine is not None and spec.engine != engine:
            raise EngineNotInstalled(worker, spec.engine)
        name, queue = full_name(runbook.project, spec.queue), runbook.queues[spec.queue]
        external = queue if queue.kind == "external" else None
        return cls(
            spec,
            taken_name(name) if external else name,
            PipelinePlan.of(runbook.pipelines[spec.pipeline]),
            base,
            external,
        )
