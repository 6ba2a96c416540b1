# syntax=docker/dockerfile:1
# The trainer. From the root of the repository:
#   docker build -f deploy/images/trainer.Dockerfile -t weir-trainer .
#   docker build -f deploy/images/trainer.Dockerfile -t weir-trainer-gpu --build-arg DEVICE=gpu .
# Where the index of torch for CPUs cannot be reached: --build-arg TORCH_INDEX=
# With EXTRAS=all it holds all of weir: `weir up` in one container.

# Python 3.11.16. The digest is that of the index of all platforms.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

FROM ${PYTHON_IMAGE} AS build
# cpu, or gpu: torch with CUDA. The index of a bundle is built on the CPU either way.
ARG DEVICE=cpu
# The index of torch for CPUs. Empty: the usual one, which has torch with CUDA (several gigabytes), and CUDA is taken out.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=trainer,cpu
# The object stores that fsspec shall reach.
ARG STORES=s3,gcs,azure
ENV PATH=/opt/weir/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 VIRTUAL_ENV=/opt/weir UV_NO_CACHE=1 UV_LINK_MODE=copy
WORKDIR /src
COPY . .
RUN python -m venv /opt/weir \
    && pip install --no-cache-dir --require-hashes --requirement requirements-uv.txt \
    && if [ "${DEVICE}" = gpu ]; then unset TORCH_INDEX; fi \
    && deploy/install.sh /opt/weir/bin/python "${EXTRAS},${STORES}" \
    && uv pip install --no-deps --no-build-isolation --compile-bytecode . \
    && if [ "${DEVICE}" = cpu ]; then python deploy/images/without_cuda.py && python -c "import torch"; fi \
    && pip uninstall --yes uv setuptools pip

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir-trainer" \
      org.opencontainers.image.description="weir's trainer: from committed windows to bundles" \
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
EXPOSE 9102 29400
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9102/metrics', timeout=3)"]
ENTRYPOINT ["weir"]
CMD ["train", "--follow"]
