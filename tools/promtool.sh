#!/bin/bash
# Print the path of promtool, which checks what is written for Prometheus: the one that is installed, or the one in Debian's package of
# prometheus, unpacked below ${MUSTER_PROMTOOL_DIR:-/var/tmp/muster-promtool}. Nothing is installed, and no service is started.
set -euo pipefail

if command -v promtool; then
    exit
fi
folder=${MUSTER_PROMTOOL_DIR:-/var/tmp/muster-promtool}
tool=$folder/usr/bin/promtool
if ! "$tool" --version >/dev/null 2>&1; then
    echo "tools/promtool.sh: unpacking Debian's promtool in $folder" >&2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && apt-get download prometheus >/dev/null 2>&1) || {
        echo "tools/promtool.sh: apt-get could not fetch the package prometheus" >&2
        exit 1
    }
    mkdir -p "$folder"
    dpkg -x "$work"/prometheus_*.deb "$work/x"
    install -D "$work/x/usr/bin/promtool" "$tool"
fi
echo "$tool"
