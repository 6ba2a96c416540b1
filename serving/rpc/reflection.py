"""gRPC server reflection, in both versions of its protocol, v1alpha and v1.

grpcio has only v1alpha; v1 is the same protocol under another name, with the same messages on the wire.
"""

from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

__all__ = ["REFLECTION_V1", "enable_reflection"]

REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


def enable_reflection(services: Sequence[str], server: Any) -> None:
    """Add reflection to a `grpc.aio` server; it lists the `services` and itself."""
    names = (*services, reflection.SERVICE_NAME, REFLECTION_V1)
    reflection.enable_server_reflection(names, server)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": handler}),)
    )
