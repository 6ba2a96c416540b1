# syntax=docker/dockerfile:1
# Flink and Beam's job server for a cluster of one node. From the folder that `python -m deploy.engines fetch` has filled:
#   docker build -f deploy/images/flink.Dockerfile -t weir-flink .venv/tools

ARG JAVA_IMAGE=docker.io/library/eclipse-temurin:17-jre-jammy

FROM ${JAVA_IMAGE}
ARG FLINK_VERSION=1.19.3
ARG JOB_SERVER=beam-2.70.0-2.65.0-flink-1.19
LABEL org.opencontainers.image.title="weir-flink" \
      org.opencontainers.image.description="Apache Flink's jars, Apache Beam's job server for it, and a Java" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${FLINK_VERSION}"
COPY flink-${FLINK_VERSION} /opt/flink
COPY ${JOB_SERVER} /opt/job-server
WORKDIR /tmp
USER 10001:10001
EXPOSE 6123 6124 8081
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["bash", "-c", "</dev/tcp/127.0.0.1/8081"]
ENTRYPOINT ["java", "-cp", "/opt/flink/*"]
CMD ["org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint", "--configDir", "/etc/flink"]
