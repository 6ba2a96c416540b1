#!/usr/bin/env bash
# Installs what uv.lock holds for some extras of weir, each package checked by its hash:
#   deploy/install.sh PYTHON EXTRA,EXTRA...
# uv lies beside PYTHON, which has pip. With TORCH_INDEX torch comes from that index, in the locked version but unchecked,
# and the packages that only its build for CUDA needs are left out.
set -euo pipefail
python=$1
uv=$(dirname "$python")/uv
locked=$(mktemp)
trap 'rm -f "$locked"' EXIT

# uv needs a quarter of pip's time, but reads none of pip's settings: a mirror, certificates.
install() {
  if ! [[ $("$python" -m pip config list) =~ \.(index-url|extra-index-url|no-index)= ]]; then
    "$uv" pip install --python "$python" --no-deps --compile-bytecode "$@" && return
    echo "uv could not install; pip tries, with its own settings" >&2
  fi
  "$python" -m pip install --disable-pip-version-check --no-deps "$@"
}

read -ra wanted <<< "--group=build --extra=${2//,/ --extra=}"
if [ -n "${TORCH_INDEX:-}" ]; then
  install --index-url "$TORCH_INDEX" "$(sed -n '/^name = "torch"$/{n;s/version = "\(.*\)"/torch==\1/p}' uv.lock)"
  mapfile -t -O "${#wanted[@]}" wanted < <(sed -nE 's/^name = "(torch|triton|(cuda|nvidia)-.*)"$/--no-emit-package=\1/p' uv.lock)
fi
"$uv" export --quiet --frozen --no-emit-project --no-header --no-annotate "${wanted[@]}" > "$locked"
install --require-hashes --requirement "$locked"
