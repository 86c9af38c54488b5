#!/bin/bash
# A function for the tests of the agent: sends it the request of its event by curl, answers with what comes back, and
# ends as the event says: return, raise, sleep, crash, abandon.
set -u
runtime=http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation
agent=http://$LEASEHOLD_LISTEN
headers=$(mktemp)

while true; do
    event=$(curl --silent --dump-header "$headers" "$runtime/next")
    id=$(tr -d '\r' <"$headers" | sed -n 's/^[Ll]ambda-[Rr]untime-[Aa]ws-[Rr]equest-[Ii]d: //p')
    read -r path body <<<"$(python3 -c 'import json, sys; e = json.loads(sys.argv[1]); print(e["path"], json.dumps(e["body"]))' "$event")"
    data=(--data "$body")
    [[ $body != "{}" ]] || data=()
    what=response
    case $event in
        *'"then": "abandon"'*)
            curl --silent --no-buffer "${data[@]}" "$agent$path" >"$headers.hold" &
            until [[ -s $headers.hold ]]; do sleep 0.05; done
            answer='"abandoned"'
            ;;
        *)
            answer=$(curl --silent "${data[@]}" "$agent$path")
            ;;
    esac
    case $event in
        *'"then": "raise"'*) what=error ;;
        *'"then": "sleep"'*) sleep 60 ;;
        *'"then": "crash"'*) exit 1 ;;
    esac
    curl --silent --data "$answer" "$runtime/$id/$what" >/dev/null
done
