#!/bin/sh
# Gate: `cmake --install` into an empty root, below several prefixes, gives programs that run from there, their module, pages, completions
# and docs, and an SDK that names its own place.
# usage: installed.sh BUILD PREFIX...
set -eu
build=$1
shift
root=$(mktemp -d "${TMPDIR:-/tmp}/muster-install.XXXXXX")
server=
tidy() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    rm -rf "$root"
}
trap tidy EXIT
fail() {
    echo "below $prefix: $*"
    exit 1
}
has() { [ -n "$(find "$at" -path "*$1")" ] || fail "$1 is not installed"; }

# The installed server finds its installed modules: it answers HTTP from there, and has a token.
answers() {
    rm -f "$root/port" "$root/token"
    "$at/bin/muster" token new "$root/token"
    "$at/bin/rdzv-server" --host 127.0.0.1 --port 0 --port-file "$root/port" --state-dir "" --log-level error --token-file "$root/token" &
    server=$!
    tries=0
    while [ ! -s "$root/port" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 200 ] || fail "the installed server does not listen"
        sleep 0.05
    done
    curl -sf --max-time 10 "http://127.0.0.1:$(cat "$root/port")/healthz" || fail "the installed server does not answer"
    for module in http crypto; do
        grep -q "$at.*/muster-$module.so" "/proc/$server/maps" || fail "the server's module $module is not the installed one"
    done
    kill "$server"
    wait "$server"
    server=
}

for prefix in "$@"; do
    destination=$(mktemp -d "$root/XXXXXX")
    at=$destination$prefix
    DESTDIR=$destination cmake --install "$build" --prefix "$prefix" >"$root/log" || { cat "$root/log"; exit 1; }
    for page in rdzv-server.8 node-agent.8 muster.1; do
        program=${page%.*}
        [ -x "$at/bin/$program" ] || fail "$program is not installed"
        "$at/bin/$program" --version
        has "/man${page##*.}/$page"
        has "/bash-completion/completions/$program"
        has "/_$program"
        has "/vendor_completions.d/$program.fish"
    done
    has /man3/muster.3
    has /architecture.md
    python3 -B "$(dirname "$0")/links.py" "$at" || fail "links of the installed pages lead nowhere"
    has /muster/__init__.py
    has /muster/run.py
    answers
    if [ -e "$build/bin/trainer" ]; then
        has /man1/trainer.1
        "$at/bin/trainer" --version || fail "the installed trainer does not find libmuster"
    fi
    # Where pkg-config says things are, seen from the folder it is asked in.
    pc=$(find "$at" -name muster.pc)
    include=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --variable=includedir muster)
    python=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --variable=pythondir muster)
    [ -e "$include/muster/muster.h" ] && [ -e "$python/muster/run.py" ] || fail "muster.pc names $include and $python"
    # The module's own way to the program; a sanitized library cannot be loaded into Python.
    if ! grep -q __asan_init "$build/lib/libmuster.so"; then
        PYTHONPATH=$python PYTHONDONTWRITEBYTECODE=1 PATH=/usr/bin:/bin python3 -m muster.run --version
    fi
    if grep -rlqI "$build" "$at"; then
        fail "names the build folder: $(grep -rlI "$build" "$at")"
    fi
done
echo "installed: programs, module, pages, completions, docs and SDK are there and work"
