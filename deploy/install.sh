#!/usr/bin/env bash
# Installs what uv.lock holds for some extras of weir, each package checked by its hash:
#   deploy/install.sh PYTHON EXTRA,EXTRA...
# uv lies beside PYTHON. With TORCH_INDEX torch comes from that index, in the locked version but unchecked, and the
# packages that only its build for CUDA needs are left out.
set -euo pipefail
uv=$(dirname "$1")/uv
read -ra wanted <<< "--group=build --extra=${2//,/ --extra=}"
if [ -n "${TORCH_INDEX:-}" ]; then
  torch=$(sed -n '/^name = "torch"$/{n;s/version = "\(.*\)"/torch==\1/p}' uv.lock)
  "$uv" pip install --python "$1" --no-deps --index-url "$TORCH_INDEX" --compile-bytecode "$torch"
  mapfile -t -O "${#wanted[@]}" wanted < <(sed -nE 's/^name = "(torch|triton|(cuda|nvidia)-.*)"$/--no-emit-package=\1/p' uv.lock)
fi
"$uv" export --quiet --frozen --no-emit-project --no-header --no-annotate "${wanted[@]}" \
| "$uv" pip install --python "$1" --require-hashes --compile-bytecode --requirement -
