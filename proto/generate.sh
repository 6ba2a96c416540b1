#!/bin/sh
# Regenerates weir/retrieval/v1 and weir/log/v1 from the sources beside this script; with --check it only compares.
set -eu

cd "$(dirname "$0")/.."
retrieval=weir/retrieval/v1/retrieval
interaction=weir/log/v1/interaction
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

PATH=".venv/bin:$PATH"
python -m grpc_tools.protoc --proto_path=proto --python_out="$out" --mypy_out="$out" \
    "proto/$retrieval.proto" "proto/$interaction.proto"
python -m grpc_tools.protoc --proto_path=proto --grpc_python_out="$out" --mypy_grpc_out="$out" "proto/$retrieval.proto"

for file in "${retrieval}_pb2.py" "${retrieval}_pb2.pyi" "${retrieval}_pb2_grpc.py" "${retrieval}_pb2_grpc.pyi" \
    "${interaction}_pb2.py" "${interaction}_pb2.pyi"; do
    if [ "${1:-}" != --check ]; then
        cp "$out/$file" "$file"
    elif ! diff -u "$file" "$out/$file"; then
        echo "$file is not what its source in proto/ gives: run proto/generate.sh" >&2
        exit 1
    fi
done
