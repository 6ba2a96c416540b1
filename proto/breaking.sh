#!/bin/sh
# Refuses what breaks clients of the last accepted API, proto/weir.binpb. With --accept the sources become that API:
# do it with each release, and in between only for what no release has had.
set -eu

cd "$(dirname "$0")"
buf=${BUF:-../.venv/buf/node_modules/.bin/buf}
python=${PYTHON:-../.venv/bin/python}

if [ ! -x "$buf" ]; then
    echo "proto/ is not compared with the API that clients know: there is no npm to install buf with"
    exit 0
fi
# buf looks for imports in its module only: google/api comes with a Python package.
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
cp -r buf.yaml weir "$module"
mkdir -p "$module/google/api"
google=$("$python" -c 'import google.api; print(google.api.__path__[0])')
cp "$google/annotations.proto" "$google/http.proto" "$module/google/api"
"$buf" lint "$module"
if [ "${1:-}" = --accept ]; then
    "$buf" build "$module" --path "$module/weir" --output weir.binpb
elif ! "$buf" breaking "$module" --against weir.binpb; then
    echo "proto/ breaks clients of the API in proto/weir.binpb: reserve what goes, give what is new its own number" >&2
    exit 1
fi
