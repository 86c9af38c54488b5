# shellcheck shell=bash
# What scripts/ministack.sh and scripts/sam-local.sh share: tools of pinned versions, each in a virtual environment under
# target/tools, and one build of the functions. To be sourced, in the root of the repository.

readonly SAM_VERSION=1.170.0
readonly CARGO_LAMBDA_VERSION=1.9.2
readonly ZIGLANG_VERSION=0.17.1
readonly AWSCLI_VERSION=1.46.3
readonly CFN_LINT_VERSION=1.58.0
readonly MINISTACK_VERSION=1.5.33
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

# Builds the functions as `sam build` does anywhere, for this machine, as real stacks get them: optimised, stripped.
sam_build() {
    say "building the functions for $(machine); the first time takes ten minutes"
    export CARGO_TARGET_DIR=$LAMBDA_TARGET
    mkdir -p "$(dirname "$SAM_LOG")"
    if ! { build_functions && package_functions; } >"$SAM_LOG" 2>&1; then
        cat "$SAM_LOG" >&2
        die "the build failed"
    fi
    unset CARGO_TARGET_DIR
}

# SAM builds one function after the other, each mostly on one core. This keeps all cores busy, and SAM finds them built.
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
