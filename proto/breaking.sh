#!/bin/sh
# Refuses what breaks clients of the last accepted API, proto/weir.binpb. With --accept the sources become that API:
# do it with each release, and in between only for what no release has had.
set -eu

cd "$(dirname "$0")"
buf=${BUF:-../.venv/buf/node_modules/.bin/buf}

if [ ! -x "$buf" ]; then
    echo "proto/ is not compared with the API that clients know: there is no npm to install buf with"
    exit 0
fi
"$buf" lint
if [ "${1:-}" = --accept ]; then
    "$buf" build --output weir.binpb
elif ! "$buf" breaking --against weir.binpb; then
    echo "proto/ breaks clients of the API in proto/weir.binpb: reserve what goes, number what comes anew" >&2
    exit 1
fi
