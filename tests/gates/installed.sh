#!/bin/sh
# Gate: `cmake --install` into an empty root gives programs that run from there, their module, pages and docs.
# usage: installed.sh BUILD PREFIX
set -eu
build=$1
prefix=$2
root=$(mktemp -d "${TMPDIR:-/tmp}/muster-install.XXXXXX")
trap 'rm -rf "$root"' EXIT
DESTDIR=$root cmake --install "$build" >"$root/log" || { cat "$root/log"; exit 1; }
for page in rdzv-server.8 node-agent.8 muster.1; do
    program=${page%.*}
    [ -x "$root$prefix/bin/$program" ] || { echo "$program is not installed"; exit 1; }
    "$root$prefix/bin/$program" --version
    [ -n "$(find "$root$prefix" -name "$page*")" ] || { echo "$program has no page"; exit 1; }
done
[ -n "$(find "$root$prefix" -name 'muster-http.so')" ] || { echo "the HTTP module is not installed"; exit 1; }
[ -n "$(find "$root$prefix" -name 'architecture.md')" ] || { echo "the docs are not installed"; exit 1; }

# The installed server finds its installed module: it answers HTTP from there.
port_file=$root/port
"$root$prefix/bin/rdzv-server" --host 127.0.0.1 --port 0 --port-file "$port_file" --state-dir "" --log-level error &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$root"' EXIT
tries=0
while [ ! -s "$port_file" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 200 ] || { echo "the installed server does not listen"; exit 1; }
    sleep 0.05
done
curl -sf --max-time 10 "http://127.0.0.1:$(cat "$port_file")/healthz" || { echo "the installed server does not answer"; exit 1; }
echo "installed: programs, module, pages and docs are there and work"
