#!/bin/sh
# Regenerates weir/retrieval/v1 and weir/log/v1 from the sources beside this script; with --check it only compares.
set -eu

cd "$(dirname "$0")/.."
retrieval=weir/retrieval/v1/retrieval
interaction=weir/log/v1/interaction
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

PATH=".venv/bin:.venv/tools:$PATH"
# google/api: how the methods look over HTTP.
google=$(python -c 'import google.api; print(google.api.__path__[0])')/../..
protoc() { python -m grpc_tools.protoc --proto_path=proto --proto_path="$google" "$@"; }
protoc --python_out="$out" --mypy_out="$out" "proto/$retrieval.proto" "proto/$interaction.proto"
protoc --grpc_python_out="$out" --mypy_grpc_out="$out" "proto/$retrieval.proto"
made="${retrieval}_pb2.py ${retrieval}_pb2.pyi ${retrieval}_pb2_grpc.py ${retrieval}_pb2_grpc.pyi
    ${interaction}_pb2.py ${interaction}_pb2.pyi"

if command -v protoc-gen-openapi > /dev/null; then
    protoc --openapi_out="$out" "--openapi_opt=title=weir,version=v1,naming=json,M$retrieval.proto=weir/v1" \
        "proto/$retrieval.proto"
    mv "$out/openapi.yaml" "$out/weir/retrieval/v1/"
    made="$made weir/retrieval/v1/openapi.yaml"
else
    echo "weir/retrieval/v1/openapi.yaml is left as it is: there is no Go to build its generator with"
fi

for file in $made; do
    if [ "${1:-}" != --check ]; then
        cp "$out/$file" "$file"
    elif ! diff -u "$file" "$out/$file"; then
        echo "$file is not what its source in proto/ gives: run proto/generate.sh" >&2
        exit 1
    fi
done
