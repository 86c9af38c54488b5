# shellcheck shell=bash
# Shared by the scripts that install tools: each of a pinned version, in a virtual environment under target/tools. To be
# sourced; the tools' paths count from the root of the repository.

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

# Installs Debian packages, one caller at a time. An installation that was killed half way, by a Ctrl-C or a time-out, is
# completed first: apt-get refuses everything until that is done.
apt_install() {
    command -v apt-get >/dev/null || die "please install $*"
    (
        flock 9 &&
            as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a &&
            as_root apt-get update -qq &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    ) 9>"${TMPDIR:-/tmp}/leasehold-apt.lock" >/dev/null
}

# Makes a virtual environment in $1 with the packages that follow, all at once or not at all. Scripts that run side by
# side wait for each other.
venv() {
    local folder=$1
    shift
    [[ ! -e $folder/.complete ]] || return 0
    mkdir -p "$(dirname "$folder")"
    (
        flock 9
        [[ ! -e $folder/.complete ]] || exit 0
        say "installing $*"
        python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv
        rm -rf "$folder"
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
        touch "$folder/.complete"
    ) 9>"$folder.lock"
}
