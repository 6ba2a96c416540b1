import asyncio

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.reflection import SERVICE_NAME

from weir.serving.rpc.reflection import REFLECTION_V1, enable_reflection


async def _listed(version: str) -> list[str]:
    server = grpc.aio.server()
    enable_reflection(("weir.retrieval.v1.RetrievalService",), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.stream_stream(
                f"/{version}/ServerReflectionInfo",
                request_serializer=pb.ServerReflectionRequest.SerializeToString,
                response_deserializer=pb.ServerReflectionResponse.FromString,
            )
            request = pb.ServerReflectionRequest(list_services="")
            [answer] = [one async for one in ask(iter([request]))]
            return [service.name for service in answer.list_services_response.service]
    finally:
        await server.stop(None)


@pytest.mark.parametrize("version", [SERVICE_NAME, REFLECTION_V1])
def test_both_versions_list_the_services(version: str) -> None:
    listed = asyncio.run(_listed(version))
    assert {"weir.retrieval.v1.RetrievalService", SERVICE_NAME, REFLECTION_V1} <= {*listed}
