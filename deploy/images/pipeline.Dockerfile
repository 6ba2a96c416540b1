# syntax=docker/dockerfile:1
# The pipeline. From the root of the repository:
#   docker build -f deploy/images/pipeline.Dockerfile -t weir-pipeline .

# Python 3.11.16. The digest is that of the index of all platforms.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

FROM ${PYTHON_IMAGE} AS build
# The object stores that fsspec shall reach.
ARG STORES=s3,gcs,azure
ENV PATH=/opt/weir/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 VIRTUAL_ENV=/opt/weir UV_NO_CACHE=1 UV_LINK_MODE=copy
WORKDIR /src
COPY . .
RUN python -m venv /opt/weir \
    && pip install --no-cache-dir --require-hashes --requirement requirements-uv.txt \
    && deploy/install.sh /opt/weir/bin/python "pipeline,avro,${STORES}" \
    && uv pip install --no-deps --no-build-isolation --compile-bytecode . \
    && pip uninstall --yes uv setuptools pip

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir-pipeline" \
      org.opencontainers.image.description="weir's pipeline: from the interaction log to committed windows" \
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
EXPOSE 9101
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9101/metrics', timeout=3)"]
ENTRYPOINT ["weir"]
CMD ["ingest", "--follow"]
