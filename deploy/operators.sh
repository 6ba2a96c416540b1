#!/usr/bin/env bash
# Writes the definitions of the custom resources of Flink's and Strimzi's operators into a folder: operators.sh FOLDER. They come
# out of the operators' jars: Flink's holds them, Strimzi's has a program that makes them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mvn --quiet --batch-mode --file "$(dirname "$0")/operators.xml" dependency:copy-dependencies "-DoutputDirectory=$work/jars"
mkdir "$work/crds"
(cd "$work/crds" && jar xf "$work"/jars/flink-kubernetes-operator-api-*.jar META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml)
mv "$work"/crds/META-INF/fabric8/*.yml "$work/crds/flinkdeployment.yaml"
rm -r "$work/crds/META-INF"
types=io.strimzi.api.kafka.model
java -cp "$work/jars/*" io.strimzi.crdgenerator.CrdGenerator --yaml \
    "$types.topic.KafkaTopic=$work/crds/kafkatopic.yaml" "$types.user.KafkaUser=$work/crds/kafkauser.yaml" 2> /dev/null
mkdir -p "$(dirname "$1")"
mv "$work/crds" "$1"
