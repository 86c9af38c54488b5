# shellcheck shell=bash
# Shared by the scripts that run a local AWS: tools of pinned versions, one build of the functions, and a ministack of
# the script's own. To be sourced, in the root of the repository.

readonly SAM_VERSION=1.170.0
readonly CARGO_LAMBDA_VERSION=1.9.2
readonly ZIGLANG_VERSION=0.17.1
readonly AWSCLI_VERSION=1.46.3
readonly CFN_LINT_VERSION=1.58.0
readonly MINISTACK_VERSION=1.5.33
readonly MINISTACK_SECONDS=60

readonly SAM_TOOLS="$PWD/target/tools/sam-$SAM_VERSION"
readonly MINISTACK_TOOLS="$PWD/target/tools/ministack-$MINISTACK_VERSION"

# The folders of the built template, of the functions, and of cargo's build: separate ones, so that no build disturbs
# another.
readonly SAM_BUILD="$PWD/target/sam/build"
readonly SAM_LOG="$PWD/target/sam/build.log"
readonly LAMBDA_TARGET="$PWD/target/lambda"

export SAM_CLI_TELEMETRY=0 AWS_PAGER=

# shellcheck source=scripts/lib/tools.sh
source scripts/lib/tools.sh

# Reads a script's arguments into `build`: with --no-build it is `no`, with --debug `debug`. The script has a function
# `usage`.
# shellcheck disable=SC2034
read_arguments() {
    build=yes
    case ${1-} in
        "") ;;
        --no-build) build=no ;;
        --debug) build=debug ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
}

# Installs sam, aws, cargo-lambda, its cross-compiling linker, and cfn-lint.
install_sam() {
    venv "$SAM_TOOLS" "aws-sam-cli==$SAM_VERSION" "cargo-lambda==$CARGO_LAMBDA_VERSION" "ziglang==$ZIGLANG_VERSION" \
        "awscli==$AWSCLI_VERSION" "cfn-lint==$CFN_LINT_VERSION"
    export PATH="$SAM_TOOLS/bin:$PATH"
}

# ministack has its own environment: beside sam, pip would choose an older version.
install_ministack() {
    venv "$MINISTACK_TOOLS" "ministack[full]==$MINISTACK_VERSION"
}

# The architecture of this machine, in Lambda's words.
machine() {
    case $(uname -m) in
        x86_64) echo x86_64 ;;
        aarch64 | arm64) echo arm64 ;;
        *) die "Lambda does not run on $(uname -m)" ;;
    esac
}

# The run's own folder, for all files of its tools, and its ministack. `finish` removes both.
work=
ministack_pid=

# Removes this run's processes and files at its end, whatever the reason. After a failure it shows the end of
# ministack's log.
begin() {
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    work=$(mktemp -d)
    # `sam` leaves an empty folder for each function that it packages.
    export TMPDIR="$work/tmp"
    mkdir "$TMPDIR"
}

finish() {
    local status=$?
    trap '' INT TERM HUP
    if [[ -n $ministack_pid ]]; then
        ((status == 0)) || tail -n 40 "$work/ministack.log" >&2
        # The functions, which are processes of ministack, end with it.
        stop "$ministack_pid"
    fi
    rm -rf ${work:+"$work"}
}

# Starts a ministack with the given variables, and points every AWS client of this script at it.
start_ministack() {
    local port
    port=$(free_port)
    export AWS_ENDPOINT_URL="http://127.0.0.1:$port" AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
    export AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
    unset AWS_PROFILE AWS_SESSION_TOKEN
    # All its files are in this run's folder. It opens no other ports, and finds no container engine.
    env "$@" GATEWAY_PORT="$port" BIND_HOST=127.0.0.1 STATE_DIR="$work/state" S3_DATA_DIR="$work/s3" \
        IOT_MTLS_ENABLED=0 SFTP_ENABLED=0 DOCKER_HOST=unix:///nonexistent LOG_LEVEL=WARNING \
        "$MINISTACK_TOOLS/bin/ministack" >"$work/ministack.log" 2>&1 </dev/null &
    ministack_pid=$!
    wait_for "$AWS_ENDPOINT_URL" "$ministack_pid" "$MINISTACK_SECONDS" || die "ministack did not start"
}

# Builds the functions with `sam build`, for this machine, as real stacks get them: optimised and stripped.
sam_build() {
    say "building the functions for $(machine); the first time takes minutes"
    export CARGO_TARGET_DIR=$LAMBDA_TARGET
    mkdir -p "$(dirname "$SAM_LOG")"
    if ! { build_functions && package_functions; } >"$SAM_LOG" 2>&1; then
        cat "$SAM_LOG" >&2
        die "the build failed"
    fi
    unset CARGO_TARGET_DIR
}

# SAM builds one binary after the other, each mostly on one core. This build keeps all cores busy, and SAM finds its
# results.
build_functions() {
    local options=(--release --locked --package leasehold-functions)
    # The options are SAM's, so that SAM does not build again.
    [[ $(machine) == x86_64 ]] || options+=(--arm64)
    # The state machines' stories run beside it, and keep time.
    nice cargo lambda build "${options[@]}"
}

# Lays out the binaries of cargo's debug build as SAM does its own: these are no test of the optimised build.
debug_build() {
    cargo build --quiet --workspace --locked
    python3 scripts/lib/debug_build.py "$SAM_BUILD-debug" target/debug
}

package_functions() {
    sam build --parameter-overrides "Architecture=$(machine)" --build-dir "$SAM_BUILD"
}

# Returns a port below the range that systems use for outgoing connections.
free_port() {
    local candidate
    for ((i = 0; i < 50; i++)); do
        candidate=$((20000 + RANDOM % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "found no free port between 20000 and 32000"
}

# Waits at most $3 seconds until the process $2 answers at $1 (a URL), whatever the answer.
wait_for() {
    local deadline=$((SECONDS + $3))
    until curl --silent --output /dev/null --max-time 2 "$1"; do
        kill -0 "$2" 2>/dev/null || return 1
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
    kill -0 "$2" 2>/dev/null
}

# Ends a process that this script started, and waits for it.
stop() {
    local pid=$1
    kill -TERM "$pid" 2>/dev/null || return 0
    for ((i = 0; i < 100; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}
