#!/bin/bash
# The Debian packages that muster needs, installed where they are missing.
#   tools/deps.sh build        to build it          tools/deps.sh demo    also to run the demo
#   tools/deps.sh test         also to run all tests
#   tools/deps.sh --list SET   only name them
# Does nothing, and needs no rights, when all are there.
set -euo pipefail

build=(gcc libc6-dev cmake ninja-build pkg-config python3 libuv1-dev libcjson-dev libcurl4-openssl-dev libmicrohttpd-dev libsqlite3-dev libssl-dev uthash-dev
    libhwloc-dev libopenblas-dev)
demo=(curl jq procps)
test=(g++ libcmocka-dev python3-pytest python3-pytest-timeout python3-jsonschema python3-venv python3-torch hydra mpich openmpi-bin redis-server
    slurmctld slurmd slurm-client munge
    nftables iproute2 systemd dbus util-linux openssh-server valgrind strace spin clang clang-format clang-tidy libclang-rt-14-dev zsh fish man-db
    dpkg-dev file lintian)

packages_of() {
    case $1 in
    build) echo "${build[*]}" ;;
    demo) echo "${build[*]} ${demo[*]}" ;;
    test) echo "${build[*]} ${demo[*]} ${test[*]}" ;;
    *)
        echo "usage: tools/deps.sh [--list] build|demo|test" >&2
        exit 2
        ;;
    esac
}

if [[ ${1:-} == --list ]]; then
    packages_of "${2:-}" | tr ' ' '\n'
    exit
fi
wanted=$(packages_of "${1:-}")
# shellcheck disable=SC2086  # one word a package
have=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null | awk '$2 == "installed" { print $1 }' || true)
missing=$(comm -23 <(tr ' ' '\n' <<<"$wanted" | sort -u) <(sort -u <<<"$have"))
[[ -z $missing ]] && exit 0

echo "tools/deps.sh: installing" $missing
sudo=()
if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || {
        echo "tools/deps.sh: these packages are missing, and only root can install them:" $missing >&2
        exit 1
    }
    sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install() {
    # shellcheck disable=SC2086
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing </dev/null
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists of a fresh machine are empty or old: a failure is tried once more with new ones.
install >"$log" 2>&1 || { "${sudo[@]}" apt-get update >"$log" 2>&1 && install >"$log" 2>&1; } || {
    tail -20 "$log" >&2
    echo "tools/deps.sh: apt-get could not install" $missing >&2
    exit 1
}
