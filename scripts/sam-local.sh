#!/usr/bin/env bash
# Runs the functions' real binaries in containers, as Lambda does, behind `sam local start-api` and in front of DynamoDB
# Local: the README's curl session, word for word, and the conformance suite.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

readonly DOCKER_SECONDS=60
readonly PULL_SECONDS=300
readonly DYNAMODB_SECONDS=300
readonly API_SECONDS=120
readonly SESSION_SECONDS=600

# The exit status where no container engine runs or can be started. Any other status but 0 is a failure.
readonly SKIPPED=77

# The port of the README.
readonly PORT=8080
readonly TABLE=leasehold

# The folder of this script's own engine, if none runs. Its images are kept, and it has its own bridge.
readonly DOCKER_ROOT="$PWD/target/tools/docker"
readonly BRIDGE=leasehold0
readonly BRIDGE_ADDRESS=172.29.213.1

readonly DEBIAN=bookworm
readonly DEBIAN_MIRROR=http://deb.debian.org/debian

# The differences of SAM's front from API Gateway, and the cases that therefore fail. Each must fail: see
# deployed_conforms.
#
# bytes_are_utf_8: it fails with 502 on a JSON body that is no UTF-8, before it calls a function.
#
# routes_are_fixed: it takes /v1/acquire/ for /v1/acquire.
readonly EXPECTED_FAILURES="bodies::bytes_are_utf_8 transport::routes_are_fixed"

usage() {
    cat <<EOF
Usage: scripts/sam-local.sh [--no-build | --image]

Installs the SAM CLI and cargo-lambda under target/tools, builds the functions, and tries them in containers. Needs a container
engine; where none runs, it installs Debian's docker.io and starts one for itself (as root). Where the base image of Lambda
cannot be pulled, it makes one with debootstrap. --no-build runs what was built last; --image installs the engine and makes the
image, and tries nothing.

Exits with $SKIPPED, and has tried nothing, where no container engine runs and none can be started.
EOF
}

readonly url="http://127.0.0.1:$PORT"
image="public.ecr.aws/lambda/provided:al2023-$(machine)"
readonly image

docker_pid=
has_bridge=
dynamodb_pid=
sam_pid=
containers_before=
# The address of this machine for containers, and the endpoint of DynamoDB Local.
host=
dynamodb=

cleanup() {
    local status=$?
    trap '' INT TERM HUP
    if [[ -n $sam_pid ]]; then
        ((status == 0)) || tail -n 40 "$work/sam.log" >&2
        stop "$sam_pid"
        # Removes the containers that SAM has left.
        comm -13 <(printf '%s\n' "$containers_before") <(our_containers) | xargs -r docker rm --force >/dev/null 2>&1
    fi
    [[ -z $dynamodb_pid ]] || stop "$dynamodb_pid"
    [[ -z $docker_pid ]] || stop "$docker_pid"
    [[ -z $has_bridge ]] || ip link delete "$BRIDGE"
    # A file system that is still mounted there is not emptied.
    rm -rf --one-file-system ${work:+"$work"}
}

# The containers of the image that SAM makes of the base image.
our_containers() {
    docker ps --all --quiet --filter "ancestor=${image/:al2023-/:al2023-rapid-}" | sort
}

skip() {
    say "SKIPPED, nothing was tried: $*"
    exit "$SKIPPED"
}

require_docker() {
    if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
        # On Linux a container reaches the host at the bridge's address.
        host=$(docker network inspect bridge --format '{{range .IPAM.Config}}{{.Gateway}}{{end}}')
        host=${host:-172.17.0.1}
        return
    fi
    [[ $EUID -eq 0 ]] || skip "no container engine answers; start one, or run this as root, and it starts its own"
    command -v apt-get >/dev/null || skip "no container engine answers, and here is no apt-get to install one with"
    if ! command -v dockerd >/dev/null || ! command -v ip >/dev/null; then
        say "installing a container engine"
        apt_install docker.io iproute2
    fi
    start_docker || skip "no container engine answers, and none of our own can be started: $(tail -n 1 "$work/docker.log")"
}

start_docker() {
    mkdir -p "$DOCKER_ROOT"
    ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge 2>"$work/docker.log" || return
    has_bridge=yes
    ip address replace "$BRIDGE_ADDRESS/24" dev "$BRIDGE" 2>"$work/docker.log" || return
    # There are no rules for packets: the containers need the host and nothing else.
    dockerd --data-root "$DOCKER_ROOT" --exec-root "$work/docker" --pidfile "$work/docker.pid" --host "unix://$work/docker.sock" \
        --bridge "$BRIDGE" --iptables=false --ip-forward=false --ip-masq=false >"$work/docker.log" 2>&1 </dev/null &
    docker_pid=$!
    export DOCKER_HOST="unix://$work/docker.sock"
    local deadline=$((SECONDS + DOCKER_SECONDS))
    until docker info >/dev/null 2>&1; do
        kill -0 "$docker_pid" 2>/dev/null && ((SECONDS < deadline)) || return
        sleep 0.2
    done
    host=$BRIDGE_ADDRESS
}

# Takes Lambda's base image, or makes an image of that name with the parts that the binaries need: a C library,
# certificates, and an entry point.
require_image() {
    docker image inspect "$image" >/dev/null 2>&1 && return
    timeout "$PULL_SECONDS" docker pull --quiet "$image" >/dev/null 2>&1 && return
    say "cannot pull $image; making one of Debian $DEBIAN"
    [[ $EUID -eq 0 ]] || die "making an image needs root"
    command -v debootstrap >/dev/null || apt_install debootstrap
    debootstrap --variant=minbase --include=ca-certificates "$DEBIAN" "$work/rootfs" "$DEBIAN_MIRROR" \
        >"$work/debootstrap.log" 2>&1 || {
        tail -n 20 "$work/debootstrap.log" >&2
        die "debootstrap failed"
    }
    # SAM adds its runtime emulator, which starts this script with the handler's name.
    # shellcheck disable=SC2016 # $1 is for that script
    printf '#!/bin/sh\nexport _HANDLER="$1"\nexec /var/task/bootstrap\n' >"$work/rootfs/lambda-entrypoint.sh"
    chmod 755 "$work/rootfs/lambda-entrypoint.sh"
    tar -C "$work/rootfs" -c . | docker import --change 'ENTRYPOINT ["/lambda-entrypoint.sh"]' \
        --change 'WORKDIR /var/task' - "$image" >/dev/null
    rm -rf --one-file-system "$work/rootfs"
}

start_dynamodb() {
    scripts/dynamodb-local.sh >"$work/dynamodb" 2>"$work/dynamodb.log" </dev/null &
    dynamodb_pid=$!
    local deadline=$((SECONDS + DYNAMODB_SECONDS))
    until [[ -s $work/dynamodb ]]; do
        if ! kill -0 "$dynamodb_pid" 2>/dev/null || ((SECONDS >= deadline)); then
            cat "$work/dynamodb.log" >&2
            die "DynamoDB Local did not start"
        fi
        sleep 0.2
    done
    dynamodb=$(<"$work/dynamodb")
    export AWS_ACCESS_KEY_ID=leasehold AWS_SECRET_ACCESS_KEY=leasehold AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
    unset AWS_PROFILE AWS_SESSION_TOKEN
    aws dynamodb create-table --endpoint-url "$dynamodb" --table-name "$TABLE" --billing-mode PAY_PER_REQUEST \
        --attribute-definitions AttributeName=key,AttributeType=S --key-schema AttributeName=key,KeyType=HASH >/dev/null
}

start_api() {
    ! (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null || die "something else listens on port $PORT, the README's"
    # A file sets the endpoint, and not the parameter DynamoDbEndpointUrl: SAM does not evaluate the parameter's
    # condition.
    printf '{"Parameters":{"AWS_ENDPOINT_URL_DYNAMODB":"http://%s:%s"}}' "$host" "${dynamodb##*:}" >"$work/variables.json"
    : >"$work/samconfig.toml"
    # LogLevel: SAM waits for Lambda's own last line in the log of a function, and is delayed by a second if the
    # function's lines come with it.
    containers_before=$(our_containers)
    sam local start-api --config-file "$work/samconfig.toml" --template "$SAM_BUILD/template.yaml" --port "$PORT" \
        --skip-pull-image --warm-containers EAGER --disable-authorizer --env-vars "$work/variables.json" \
        --parameter-overrides "Architecture=$(machine)" Authorizer=NONE "ExistingTableName=$TABLE" LogLevel=warn WatchConcurrency=10 \
        >"$work/sam.log" 2>&1 </dev/null &
    sam_pid=$!
    wait_for "$url/v1/health" "$sam_pid" "$API_SECONDS" || die "the API did not start"
}

main() {
    local build
    if [[ ${1-} == --image ]]; then build=image; else read_arguments "$@"; fi
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    work=$(mktemp -d)
    install_sam
    require_docker
    require_image
    [[ $build != image ]] || return 0
    # The engine may start here, but may not be allowed all that a container needs.
    [[ -z $docker_pid ]] || docker run --rm --network none --entrypoint /bin/sh "$image" -c : >"$work/run.log" 2>&1 ||
        skip "no container engine answers, and one of our own cannot run containers here: $(tail -n 1 "$work/run.log")"
    [[ $build == no ]] || sam_build
    start_dynamodb
    start_api
    say "the README's session"
    timeout --foreground "$SESSION_SECONDS" python3 scripts/lib/readme_session.py "$url"
    say "the conformance suite"
    LEASEHOLD_TEST_URL=$url LEASEHOLD_TEST_TABLE=$TABLE LEASEHOLD_TEST_DYNAMODB_ENDPOINT=$dynamodb \
        LEASEHOLD_TEST_EXPECTED_FAILURES=$EXPECTED_FAILURES \
        cargo test --quiet --workspace --test it -- --ignored deployed
    say "all passed"
}

main "$@"
