#!/bin/sh
# Regenerates weir/retrieval/v1 from the sources beside this script; with --check it only compares.
set -eu

cd "$(dirname "$0")/.."
package=weir/retrieval/v1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

PATH=".venv/bin:$PATH" python -m grpc_tools.protoc --proto_path=proto \
    --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    "proto/$package/retrieval.proto"

for file in retrieval_pb2.py retrieval_pb2.pyi retrieval_pb2_grpc.py retrieval_pb2_grpc.pyi; do
    if [ "${1:-}" != --check ]; then
        cp "$out/$package/$file" "$package/$file"
    elif ! diff -u "$package/$file" "$out/$package/$file"; then
        echo "$package/$file is not what proto/$package/retrieval.proto gives: run proto/generate.sh" >&2
        exit 1
    fi
done
