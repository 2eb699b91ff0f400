"""FilaAdmin: queues, configuration, stats, redrive, keys."""

from __future__ import annotations

import grpc

from fairlead.errors import NotADeadLetterQueue, QueueNotFound
from fairlead.model.names import check_queue_name, is_dead_letter_name
from fairlead.server.fila.calls import caller
from fairlead.server.fila.config_keys import MAX_LISTED, ConfigKeys
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.keys import Keys
from fairlead.server.fila.v1 import admin_pb2 as pb
from fairlead.server.fila.v1 import admin_pb2_grpc


class FilaAdmin(admin_pb2_grpc.FilaAdminServicer):
    """The broker of the caller decides what a call may see and do."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers

    def CreateQueue(
        self, request: pb.CreateQueueRequest, context: grpc.ServicerContext
    ) -> pb.CreateQueueResponse:
        config, options = request.config, {}
        # 0 means the default, as in Fila.
        if config.visibility_timeout_ms:
            options["visibility_timeout"] = f"{config.visibility_timeout_ms}ms"
        if config.on_enqueue_script:
            options["on_enqueue"] = config.on_enqueue_script
        if config.on_failure_script:
            options["on_failure"] = config.on_failure_script
        return pb.CreateQueueResponse(queue_id=caller().create_queue(request.name, **options).name)

    def DeleteQueue(
        self, request: pb.DeleteQueueRequest, context: grpc.ServicerContext
    ) -> pb.DeleteQueueResponse:
        caller().delete_queue(request.queue)
        return pb.DeleteQueueResponse()

    def SetConfig(self, request: pb.SetConfigRequest, context: grpc.ServicerContext) -> pb.SetConfigResponse:
        ConfigKeys(caller().config).set(request.key, request.value)
        return pb.SetConfigResponse()

    def GetConfig(self, request: pb.GetConfigRequest, context: grpc.ServicerContext) -> pb.GetConfigResponse:
        return pb.GetConfigResponse(value=ConfigKeys(caller().config).get(request.key))

    def ListConfig(
        self, request: pb.ListConfigRequest, context: grpc.ServicerContext
    ) -> pb.ListConfigResponse:
        found = ConfigKeys(caller().config).list(request.prefix)
        entries = [pb.ConfigEntry(key=key, value=value) for key, value in list(found.items())[:MAX_LISTED]]
        return pb.ListConfigResponse(entries=entries, total_count=len(found))

    def GetStats(self, request: pb.GetStatsRequest, context: grpc.ServicerContext) -> pb.GetStatsResponse:
        stats = caller().stats(check_queue_name(request.queue), keys=True)
        return pb.GetStatsResponse(
            depth=stats.ready + stats.waiting,
            in_flight=stats.leased,
            active_fairness_keys=stats.active_keys,
            active_consumers=self._consumers.of(request.queue),
            quantum=self._quantum(request.queue),
            per_key_stats=[
                pb.PerFairnessKeyStats(
                    key=key.key, pending_count=key.pending, current_deficit=key.deficit, weight=key.weight
                )
                for key in stats.keys
            ],
            per_throttle_stats=[
                pb.PerThrottleKeyStats(
                    key=throttle.key,
                    tokens=throttle.tokens,
                    rate_per_second=throttle.rate,
                    burst=throttle.burst,
                )
                for throttle in stats.throttles
            ],
        )

    def Redrive(self, request: pb.RedriveRequest, context: grpc.ServicerContext) -> pb.RedriveResponse:
        queue = check_queue_name(request.dlq_queue)
        if not is_dead_letter_name(queue):
            raise NotADeadLetterQueue(queue)
        return pb.RedriveResponse(redriven=caller().redrive(queue, count=request.count or None).moved)

    def ListQueues(
        self, request: pb.ListQueuesRequest, context: grpc.ServicerContext
    ) -> pb.ListQueuesResponse:
        listed = [self._find_info(queue.name) for queue in caller().queues()]
        return pb.ListQueuesResponse(queues=[info for info in listed if info is not None])

    def CreateApiKey(
        self, request: pb.CreateApiKeyRequest, context: grpc.ServicerContext
    ) -> pb.CreateApiKeyResponse:
        return Keys(caller().keys).create(request)

    def RevokeApiKey(
        self, request: pb.RevokeApiKeyRequest, context: grpc.ServicerContext
    ) -> pb.RevokeApiKeyResponse:
        Keys(caller().keys).revoke(request)
        return pb.RevokeApiKeyResponse()

    def ListApiKeys(
        self, request: pb.ListApiKeysRequest, context: grpc.ServicerContext
    ) -> pb.ListApiKeysResponse:
        return Keys(caller().keys).list()

    def SetAcl(self, request: pb.SetAclRequest, context: grpc.ServicerContext) -> pb.SetAclResponse:
        Keys(caller().keys).set_acl(request)
        return pb.SetAclResponse()

    def GetAcl(self, request: pb.GetAclRequest, context: grpc.ServicerContext) -> pb.GetAclResponse:
        return Keys(caller().keys).get_acl(request)

    def _quantum(self, queue: str) -> int:
        return next((info.config.quantum for info in caller().queues(queue) if info.name == queue), 0)

    def _find_info(self, queue: str) -> pb.QueueInfo | None:
        """None if the queue was deleted after it was listed."""
        try:
            stats = caller().stats(queue)
        except QueueNotFound:
            return None
        return pb.QueueInfo(
            name=queue,
            depth=stats.ready + stats.waiting,
            in_flight=stats.leased,
            active_consumers=self._consumers.of(queue),
        )
