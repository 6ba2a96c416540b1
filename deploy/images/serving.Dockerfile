# syntax=docker/dockerfile:1
# The server and the monitor, without torch and Beam. From the root of the repository:
#   docker build -f deploy/images/serving.Dockerfile -t weir-serving .
#   docker build -f deploy/images/serving.Dockerfile -t weir-serving-gpu --build-arg DEVICE=gpu .
#   docker build -f deploy/images/serving.Dockerfile -t weir-serving --build-arg FRONT=native .

# Python 3.11.16. The digest is that of the index of all platforms.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

FROM ${PYTHON_IMAGE} AS build
# cpu, or gpu: FAISS built for CUDA 12, with the libraries of CUDA as wheels.
ARG DEVICE=cpu
# The object stores that fsspec shall reach.
ARG STORES=s3,gcs,azure
# python, or native: with the compiled front as well, for serving.front = native. Debian's own Rust is too old for it; this
# one is that of its browsers, with security updates.
ARG FRONT=python
ENV PATH=/opt/weir/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 VIRTUAL_ENV=/opt/weir UV_NO_CACHE=1 UV_LINK_MODE=copy
WORKDIR /src
COPY . .
# Debian removes a version of its compilers once there is a safer one: it cannot be pinned.
# hadolint ignore=DL3008
RUN python -m venv /opt/weir \
    && pip install --no-cache-dir --require-hashes --requirement requirements-uv.txt \
    && deploy/install.sh /opt/weir/bin/python "serving,redis,${DEVICE},${STORES}" \
    && uv pip install --no-deps --no-build-isolation --compile-bytecode . \
    && if [ "$FRONT" = native ]; then \
        apt-get update && apt-get install --yes --no-install-recommends cargo-web rustc-web gcc libc6-dev \
        && uv export --quiet --frozen --only-group front --no-header --no-annotate > /tmp/front.txt \
        && pip install --no-cache-dir --require-hashes --requirement /tmp/front.txt \
        && CARGO_TARGET_DIR=/tmp/front pip install --no-deps --no-cache-dir --no-build-isolation ./native \
        && pip uninstall --yes maturin; \
    fi \
    && pip uninstall --yes uv setuptools pip

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir-serving" \
      org.opencontainers.image.description="weir's gRPC server and recall monitor" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 weir \
    && useradd --uid 10001 --gid weir --no-create-home --home-dir /tmp weir \
    && install --directory --owner=weir --group=weir /var/lib/weir
COPY --from=build /opt/weir /opt/weir
ENV PATH=/opt/weir/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:10001
EXPOSE 50051 9103 9104
# For `serve`; Kubernetes has its own probes, and `monitor` runs with --health-cmd.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import grpc; from grpc_health.v1 import health_pb2 as m, health_pb2_grpc as h; assert h.HealthStub(grpc.insecure_channel('127.0.0.1:50051')).Check(m.HealthCheckRequest(), timeout=3).status == 1"]
ENTRYPOINT ["weir"]
CMD ["serve", "--host", "0.0.0.0"]
