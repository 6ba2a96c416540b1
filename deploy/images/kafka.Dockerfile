# syntax=docker/dockerfile:1
# A Kafka broker for a cluster of one node. From the folder that `python -m deploy.engines fetch` has filled:
#   docker build -f deploy/images/kafka.Dockerfile -t weir-kafka .venv/tools

ARG JAVA_IMAGE=docker.io/library/eclipse-temurin:17-jre-jammy

FROM ${JAVA_IMAGE}
ARG KAFKA_VERSION=3.9.1
LABEL org.opencontainers.image.title="weir-kafka" \
      org.opencontainers.image.description="Apache Kafka's jars and a Java" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${KAFKA_VERSION}"
COPY kafka-${KAFKA_VERSION} /opt/kafka
WORKDIR /tmp
USER 10001:10001
EXPOSE 9092
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["bash", "-c", "</dev/tcp/127.0.0.1/9092"]
ENTRYPOINT ["java", "-cp", "/opt/kafka/*"]
CMD ["kafka.Kafka", "/etc/kafka/server.properties"]
