#!/usr/bin/env bash
# Lets several processes contend for one lock, kills and pauses them at random, and checks what they wrote.
#
#   scripts/contend.sh [SECONDS [COMMAND…]]            120 seconds by default
#
# Four shell loops run `leasehold run Moe --lease 1s -- JOB`, on a service in a file of its own. A JOB writes a few times to a
# store that checks fencing tokens (examples/fenced-store). It does not listen to SIGTERM, so that whoever is killed or
# paused leaves a late writer behind. In the end, among the writes that the store accepted, the token must never have
# fallen, and no two jobs may have written under the same token. The exit status tells.
#
# Each COMMAND is one more contender, a shell command in a loop beside the others, killed and paused like them: for example
# scripts/contenders/contender.py, which uses the Python client. It finds in its environment
#   LEASEHOLD_URL    the service
#   CONTEND_KEY      the lock to acquire, with a lease of a second
#   CONTEND_JOB      what to run under it, with the grant's token in LEASEHOLD_FENCING_TOKEN
#
# CONTENDERS=4 says how many shell loops there are; LEASEHOLD=target/debug/leasehold which command.
set -euo pipefail

seconds=${1:-120}
shift || true
root=$(cd "$(dirname "$0")/.." && pwd)
export LEASEHOLD=${LEASEHOLD:-$root/target/debug/leasehold}
export CONTEND_KEY=Moe
contenders=${CONTENDERS:-4}
if [[ ! -x $LEASEHOLD ]]; then
    echo "contend: there is no $LEASEHOLD: build it with cargo build, or name another with LEASEHOLD=…" >&2
    exit 2
fi

export CONTEND_FOLDER
CONTEND_FOLDER=$(mktemp -d)
cd "$CONTEND_FOLDER"
mkdir pids
: > log
service=
loops=()

# Ends what is still there: the loops by their flag, what they run by its process id.
finish() {
    touch stop
    for file in pids/*; do
        [[ -e $file ]] || continue
        kill -CONT "$(< "$file")" 2> /dev/null || true
        [[ ${1:-} == gently ]] || kill -TERM "$(< "$file")" 2> /dev/null || true
    done
    for loop in "${loops[@]}"; do
        wait "$loop" || true
    done
    if [[ -n $service ]]; then
        kill -TERM "$service" 2> /dev/null || true
        wait "$service" 2> /dev/null || true
        service=
    fi
    loops=()
}
trap 'finish; rm -rf "$CONTEND_FOLDER"' EXIT
trap 'exit 130' INT TERM

# One write, and a note of what became of it, in one step: so the notes are in the order of the writes. A job notes its
# beginning and its end, too. It has one id of its own.
cat > job << 'JOB'
#!/usr/bin/env bash
trap '' TERM
id=$(< /proc/sys/kernel/random/uuid)
note() { echo "$1 $LEASEHOLD_FENCING_TOKEN $id" >> "$CONTEND_FOLDER/log"; }
write() {
    flock 9
    if "$LEASEHOLD" fenced-write --store "$CONTEND_FOLDER/store.db" report "$id" > /dev/null 2>> "$CONTEND_FOLDER/errors"; then
        note accepted
    else
        [[ $? == 76 ]] && note refused || note failed
    fi
}
note start
for _ in 1 2 3 4 5 6; do
    write 9> "$CONTEND_FOLDER/log.lock"
    sleep 0.$((RANDOM % 6 + 2))
done
note end
JOB
chmod +x job
export CONTEND_JOB=$CONTEND_FOLDER/job

"$LEASEHOLD" serve --db locks.db --listen 127.0.0.1:0 > banner &
service=$!
for _ in {1..100}; do
    LEASEHOLD_URL=$(sed -n 's/^Leasehold listens on //p' banner)
    [[ -z $LEASEHOLD_URL ]] || break
    sleep 0.1
done
export LEASEHOLD_URL
[[ -n $LEASEHOLD_URL ]] || { echo "contend: the service did not start" >&2; exit 1; }

# contend NAME COMMAND…: runs a command again and again. How it ends does not matter, but that it held the lock or not.
contend() {
    local name=$1
    shift
    while [[ ! -e stop ]]; do
        "$@" > /dev/null 2>> "errors.$name" &
        echo $! > "pids/$name"
        local status=0
        wait $! 2> /dev/null || status=$?
        echo "$status" >> "statuses.$name"
    done
    rm -f "pids/$name"
}

for ((number = 1; number <= contenders; number++)); do
    contend "shell-$number" "$LEASEHOLD" run "$CONTEND_KEY" --owner "shell-$number" --lease 1s --wait 10s --poll 200ms \
        --grace 0s -q -- "$CONTEND_JOB" &
    loops+=($!)
done
number=0
for command in "$@"; do
    number=$((number + 1))
    contend "extra-$number" bash -c "exec $command" &
    loops+=($!)
done

# A second of peace, and then chaos.
sleep 1
kills=0
pauses=0
end=$((SECONDS + seconds))
while ((SECONDS < end)); do
    sleep 0.$((RANDOM % 5 + 1))
    files=(pids/*)
    file=${files[RANDOM % ${#files[@]}]}
    process=$(< "$file") || continue
    if ((RANDOM % 3 == 0)); then
        kill -KILL "$process" 2> /dev/null && kills=$((kills + 1)) || true
    else
        # For longer than the lease or for less; it goes on if it is still the same one.
        kill -STOP "$process" 2> /dev/null && pauses=$((pauses + 1)) || continue
        (
            sleep "$((RANDOM % 3)).$((RANDOM % 10))"
            [[ $(cat "$file" 2> /dev/null) == "$process" ]] && kill -CONT "$process" 2> /dev/null || true
        ) &
    fi
done
finish gently
# Late writers that nobody keeps a lock for any more.
sleep 3

echo "contend: ${seconds}s, $contenders shell loops and $# others: $kills killed, $pauses paused"
awk -v minimum="$((seconds / 8))" '
    $1 == "accepted" {
        accepted++
        if ($2 + 0 < last + 0) { print "contend: FELL: " $0 " after the token " last; bad = 1 }
        if ($2 in writer && writer[$2] != $3) { print "contend: SHARED: " $0 " and " writer[$2]; bad = 1 }
        if (!($2 in writer)) { writers++ }
        last = $2
        writer[$2] = $3
    }
    $1 == "refused" { refused++ }
    $1 == "failed" { failed++ }
    $1 == "start" { started++ }
    $1 == "end" { ended++ }
    END {
        printf "contend: %d jobs began and %d ended; %d writes of %d jobs were accepted, %d came too late and were refused\n",
            started, ended, accepted, writers, refused
        if (failed) { print "contend: " failed " writes failed for another reason"; bad = 1 }
        if (writers < minimum) { print "contend: too little happened: fewer than " minimum " jobs wrote"; bad = 1 }
        exit bad
    }' log && good=yes || good=no
echo "contend: how the contenders ended: $(sort statuses.* | uniq -c | awk '{ printf "%s%dx %s", sep, $1, $2; sep = ", " }')"
if [[ $good == no ]]; then
    cp log "$root/target/contend.log"
    cat errors errors.* >&2 2> /dev/null | tail -20 || true
    echo "contend: NOT GOOD; all notes are in target/contend.log" >&2
    exit 1
fi
echo "contend: among the accepted writes the token never fell, and none was shared"
