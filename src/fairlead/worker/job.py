"""The work of one worker, put together from the parts of a runbook."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.errors import EngineNotInstalled, WorkerNotFound
from fairlead.model.names import taken_name
from fairlead.runbook.model import QueueSpec, Runbook, WorkerSpec, full_name
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.protocol import PipelineSetup


@dataclass(frozen=True, slots=True)
class Job:
    """`base` is the directory in which commands run and the first place where Python modules are looked up.

    `queue` is the name that the broker knows. For an external queue, `external` is its specification, and
    `queue` is the broker's queue of items taken from it.
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
        """Raises `WorkerNotFound`, or `EngineNotInstalled` for a worker of another engine; `engine=None`
        accepts any.
        """
        spec = runbook.workers.get(worker)
        if spec is None:
            raise WorkerNotFound(worker, sorted(runbook.workers))
        if engine is not None and spec.engine != engine:
            raise EngineNotInstalled(worker, spec.engine)
        name, queue = full_name(runbook.project, spec.queue), runbook.queues[spec.queue]
        plan = PipelinePlan.of(runbook.pipelines[spec.pipeline])
        if queue.kind == "external":
            return cls(spec, taken_name(name), plan, base, queue)
        return cls(spec, name, plan, base)
