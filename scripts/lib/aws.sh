# shellcheck shell=bash
# Shared by the scripts that run a local AWS: tools of pinned versions, each in a virtual environment under target/tools; one
# build of the functions; and a ministack of the script's own. To be sourced, in the root of the repository.

readonly SAM_VERSION=1.170.0
readonly CARGO_LAMBDA_VERSION=1.9.2
readonly ZIGLANG_VERSION=0.17.1
readonly AWSCLI_VERSION=1.46.3
readonly CFN_LINT_VERSION=1.58.0
readonly MINISTACK_VERSION=1.5.33
readonly MINISTACK_SECONDS=60
readonly HCL2_VERSION=8.1.4

readonly SAM_TOOLS="$PWD/target/tools/sam-$SAM_VERSION"
readonly MINISTACK_TOOLS="$PWD/target/tools/ministack-$MINISTACK_VERSION"

# Where `sam build` puts the template and the functions, and where cargo builds them: a folder of its own, so that neither
# disturbs other builds.
readonly SAM_BUILD="$PWD/target/sam/build"
readonly SAM_LOG="$PWD/target/sam/build.log"
readonly LAMBDA_TARGET="$PWD/target/lambda"

export SAM_CLI_TELEMETRY=0 AWS_PAGER=

say() {
    printf '%s, %d s: %s\n' "$(basename "$0" .sh)" "$SECONDS" "$*" >&2
}

die() {
    say "$*"
    exit 1
}

as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# Installs Debian packages.
apt_install() {
    command -v apt-get >/dev/null || die "please install $*"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# A virtual environment in $1 with the packages that follow. It is made at once or not at all.
venv() {
    local folder=$1
    shift
    [[ ! -e $folder/.complete ]] || return 0
    say "installing $*"
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
    touch "$folder/.complete"
}

# sam, aws, cargo-lambda, the cross-compiling linker that it uses, cfn-lint, and a parser of Terraform's language.
install_sam() {
    venv "$SAM_TOOLS" "aws-sam-cli==$SAM_VERSION" "cargo-lambda==$CARGO_LAMBDA_VERSION" "ziglang==$ZIGLANG_VERSION" \
        "awscli==$AWSCLI_VERSION" "cfn-lint==$CFN_LINT_VERSION" "python-hcl2==$HCL2_VERSION"
    export PATH="$SAM_TOOLS/bin:$PATH"
}

# Of its own: beside sam, pip would settle for an older one.
install_ministack() {
    venv "$MINISTACK_TOOLS" "ministack[full]==$MINISTACK_VERSION"
}

# What this machine runs, in Lambda's words.
machine() {
    case $(uname -m) in
        x86_64) echo x86_64 ;;
        aarch64 | arm64) echo arm64 ;;
        *) die "Lambda does not run on $(uname -m)" ;;
    esac
}

# A folder of the run's own, for all that it and its tools leave, and a ministack in it. `finish` removes both.
work=
ministack_pid=

# Ends and removes what this run started, whatever ends it. A failure shows the end of ministack's log.
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
        # With it end the functions, which it runs as processes of its own.
        stop "$ministack_pid"
    fi
    rm -rf ${work:+"$work"}
}

# Starts a ministack, with the variables that are given, and points every AWS client of this script at it.
start_ministack() {
    local port
    port=$(free_port)
    export AWS_ENDPOINT_URL="http://127.0.0.1:$port" AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
    export AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
    unset AWS_PROFILE AWS_SESSION_TOKEN
    # Everything that it leaves is in this run's folder. It shall open no other ports, and find no container engine.
    env "$@" GATEWAY_PORT="$port" BIND_HOST=127.0.0.1 STATE_DIR="$work/state" S3_DATA_DIR="$work/s3" \
        IOT_MTLS_ENABLED=0 SFTP_ENABLED=0 DOCKER_HOST=unix:///nonexistent LOG_LEVEL=WARNING \
        "$MINISTACK_TOOLS/bin/ministack" >"$work/ministack.log" 2>&1 </dev/null &
    ministack_pid=$!
    wait_for "$AWS_ENDPOINT_URL" "$ministack_pid" "$MINISTACK_SECONDS" || die "ministack did not start"
}

# Builds the functions as `sam build` does anywhere, for this machine, as real stacks get them: optimised, stripped.
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

# SAM builds one binary after the other, each mostly on one core. This keeps all cores busy, and SAM finds them built.
build_functions() {
    local options=(--release --locked --package leasehold-functions)
    # As SAM says it, lest it builds them again.
    [[ $(machine) == x86_64 ]] || options+=(--arm64)
    cargo lambda build "${options[@]}"
}

package_functions() {
    sam build --parameter-overrides "Architecture=$(machine)" --build-dir "$SAM_BUILD"
}

# A port below the range from which systems take those of outgoing connections.
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

# Waits until $1 (a URL) is answered, whatever the answer, by the process $2. At most $3 seconds.
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
