#!/usr/bin/env bash
# Deploys the real template, with the functions' real binaries, to a local AWS (ministack, which checks signatures and
# policies here), and tests the features that a team relies on: every route, the conformance suite, the state machines,
# the authorizers, an update that keeps the locks, a deletion that keeps the table or does not.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

# SAM looks at a stack each five seconds: AWS limits such requests, and the local AWS does not.
export SAM_CLI_POLL_DELAY=0.2
readonly STACK_SECONDS=300
readonly EXECUTION_SECONDS=300
readonly BUCKET=artifacts

# The differences of ministack from AWS, and the cases that therefore fail. Each must fail: see deployed_conforms.
#
# options_is_no_exception: ministack answers every OPTIONS itself, as AWS does for an API with a CORS configuration.
# Leasehold's API has none, so on AWS the request reaches its route.
#
# bytes_are_utf_8: ministack puts U+FFFD in the place of bytes that are no UTF-8 before it hands a JSON body on as text,
# so the functions never see them.
readonly EXPECTED_FAILURES="bodies::bytes_are_utf_8 transport::options_is_no_exception"

usage() {
    cat <<EOF
Usage: scripts/ministack.sh [--life | --others | --layers | --terraform] [--no-build | --debug]

Installs ministack, the SAM CLI and cargo-lambda under target/tools, builds the functions, and deploys, tries and deletes
stacks on a ministack of its own. --no-build deploys what was built last, and --debug what cargo builds for tests.
--life tries the life of one stack alone, from an open API to its successor, and --others the stacks beside it: two at a time in a region,
the agent's layers, Terraform's states. --layers and --terraform try the last two alone.
EOF
}

# deploy STACK TEMPLATE [PARAMETER=VALUE...]
deploy() {
    local stack=$1 template=$2
    shift 2
    timeout --foreground "$STACK_SECONDS" \
        sam deploy --config-file "$work/samconfig.toml" --stack-name "$stack" --template-file "$template" \
        --s3-bucket "$BUCKET" --capabilities CAPABILITY_IAM CAPABILITY_AUTO_EXPAND --no-confirm-changeset \
        --no-progressbar ${1+--parameter-overrides "$@"} >"$work/deploy.log" 2>&1 || {
        cat "$work/deploy.log" >&2
        die "could not deploy $stack"
    }
}

deploy_leasehold() {
    local stack=$1
    shift
    deploy "$stack" "$built/template.yaml" "Architecture=$(machine)" WatchConcurrency=10 "$@"
}

delete_stack() {
    aws cloudformation delete-stack --stack-name "$1"
    timeout --foreground "$STACK_SECONDS" aws cloudformation wait stack-delete-complete --stack-name "$1"
}

output() {
    aws cloudformation describe-stacks --stack-name "$1" --output text \
        --query "Stacks[0].Outputs[?OutputKey=='$2'].OutputValue"
}

# resource STACK NAME: prints the physical id of the template's resource of this name.
resource() {
    aws cloudformation describe-stack-resource --stack-name "$1" --logical-resource-id "$2" --output text \
        --query StackResourceDetail.PhysicalResourceId
}

# The URL of the same API with a path, for clients whose resolver does not know the names below localhost (curl does).
path_of() {
    local endpoint
    endpoint=$(output "$1" ApiUrl)
    endpoint=${endpoint#*://}
    printf '%s\n' "$AWS_ENDPOINT_URL/_aws/execute-api/${endpoint%%.*}/\$default"
}

# rest_of PARAMETER=VALUE...: the REST API of the stack `leasehold`, which has these parameters, by a path.
rest_of() {
    local arn
    python3 scripts/lib/rest_api.py leasehold WatchConcurrency=10 "$@" >>"$work/rest.log" 2>&1 || {
        cat "$work/rest.log" >&2
        die "could not complete the REST API"
    }
    arn=$(output leasehold RestApiArn)
    printf '%s\n' "$AWS_ENDPOINT_URL/_aws/execute-api/${arn##*:}"
}

# The options that `ask` adds to its requests: a signature, a token, or nothing.
credentials=()

unsigned() {
    credentials=()
}

# signed ACCESS_KEY SECRET [SESSION_TOKEN]
signed() {
    credentials=(--aws-sigv4 "aws:amz:$AWS_REGION:execute-api" --user "$1:$2")
    [[ -z ${3-} ]] || credentials+=(--header "x-amz-security-token: $3")
}

bearer() {
    credentials=(--header "authorization: Bearer $1")
}

# ask STATUS METHOD PATH [BODY]: sends a request to $url and checks the status. $answer holds the answer afterwards.
ask() {
    local expected=$1 method=$2 path=$3 body=${4-} status
    status=$(curl --silent --max-time 60 --output "$work/answer" --write-out '%{http_code}' --request "$method" \
        "${credentials[@]}" ${body:+--json "$body"} "$url$path") || die "$method $path: no answer"
    answer=$(<"$work/answer")
    [[ $status == "$expected" ]] || die "$method $path $body: $status in place of $expected: $answer"
}

# A member of the last answer.
field() {
    python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$answer" "$1" 2>/dev/null ||
        die "there is no $1 in $answer"
}

expect() {
    [[ $2 == "$3" ]] || die "$1 is $2, not $3"
}

# await EXPECTED COMMAND...: waits until the command prints this.
await() {
    local expected=$1 deadline=$((SECONDS + EXECUTION_SECONDS)) found
    shift
    until found=$("$@") && [[ $found == "$expected" ]]; do
        ((SECONDS < deadline)) || die "$*: $found, not $expected, for $EXECUTION_SECONDS s"
        sleep 0.5
    done
}

# conforms STACK [PARTITION_KEY SORT_KEY]: runs the suite that every other way to run the service passes too.
conforms() {
    LEASEHOLD_TEST_URL=$(path_of "$1") LEASEHOLD_TEST_TABLE=$(output "$1" TableName) \
    LEASEHOLD_TEST_PARTITION_KEY=${2-} LEASEHOLD_TEST_SORT_KEY=${3-} \
    LEASEHOLD_TEST_DYNAMODB_ENDPOINT=$AWS_ENDPOINT_URL LEASEHOLD_TEST_EXPECTED_FAILURES=$EXPECTED_FAILURES \
        cargo test --quiet --workspace --test it -- --ignored deployed
}

# every_route KEY: calls them all about a key that nobody has used.
every_route() {
    local key=$1
    ask 200 GET /v1/health
    ask 200 POST /v1/acquire "{\"key\":\"$key\",\"ownerName\":\"host-1\",\"leaseId\":\"one\"}"
    expect outcome "$(field outcome)" created
    ask 423 POST /v1/acquire "{\"key\":\"$key\",\"ownerName\":\"host-2\",\"leaseId\":\"two\"}"
    ask 200 POST /v1/heartbeat "{\"key\":\"$key\",\"leaseId\":\"one\"}"
    ask 200 GET "/v1/lock?key=$key"
    expect state "$(field state)" held
    ask 200 GET '/v1/locks?ownerName=host-1'
    ask 200 GET "/v1/locks?key=$key"
    ask 200 POST /v1/release "{\"key\":\"$key\",\"leaseId\":\"one\"}"
    ask 200 POST /v1/acquire "{\"key\":\"$key\",\"ownerName\":\"host-2\",\"leaseId\":\"two\"}"
    expect outcome "$(field outcome)" reacquired
    ask 200 POST /v1/break "{\"key\":\"$key\",\"recordVersionNumber\":\"$(field recordVersionNumber)\"}"
    ask 200 POST /v1/release "{\"key\":\"$key\",\"leaseId\":\"two\",\"delete\":true}"
    ask 404 GET "/v1/lock?key=$key"
    ask 405 PUT /v1/acquire '{}'
    ask 404 GET /v2/lock
    expect type "$(field type)" unknown-route
}

invoke() {
    aws lambda invoke --function-name "$1" --payload "$2" "$work/answer" \
        --query "${3:-StatusCode}" --output text >"$work/invoked"
    answer=$(<"$work/answer")
}

direct_invocations() {
    local function=$1
    invoke "$function" '{"action":"acquire","key":"Larry","ownerName":"direct","leaseId":"one"}'
    expect outcome "$(field outcome)" created
    invoke "$function" '{"action":"acquire","key":"Larry","ownerName":"direct","leaseId":"two"}' FunctionError
    expect errorType "$(field errorType)" LockHeld
    invoke "$function" '{"action":"release","key":"Larry","leaseId":"one","delete":true}'
    expect outcome "$(field outcome)" released
}

execution() {
    aws stepfunctions describe-execution --execution-arn "$1" --query "$2" --output text
}

# executions STATE_MACHINE STATUS: counts them.
executions() {
    aws stepfunctions list-executions --state-machine-arn "$1" --status-filter "$2" --query 'length(executions)'
}

lock_state() {
    ask 200 GET "/v1/lock?key=$1"
    field state
}

# run_under_lock KEY SECONDS: starts a child that waits for this time.
run_under_lock() {
    aws stepfunctions start-execution --state-machine-arn "$outer" --query executionArn --output text --input '{
        "key":"'"$1"'","stateMachineArn":"'"$child"'","input":{"seconds":'"$2"'},"fencingTokenAs":"token",
        "leaseDurationMs":600000}'
}

# Tests another state machine under a lock, and the clean-up after an abort, as they are deployed.
# scripts/step-functions.sh tests them in more cases.
state_machines() {
    local outer clean_up child execution token
    outer=$(output leasehold RunUnderLockArn)
    clean_up=$(output leasehold CleanupStateMachineArn)
    # The state machine calls nothing, so any role will do.
    # shellcheck disable=SC2016 # $states is for Step Functions
    child=$(aws stepfunctions create-state-machine --name locked-child --query stateMachineArn --output text \
        --role-arn "arn:aws:iam::$account:role/$(resource leasehold RunUnderLockRole)" --definition '{"QueryLanguage":"JSONata","StartAt":"Work","States":{
            "Work":{"Type":"Wait","Seconds":"{% $states.input.seconds %}","Next":"Done"},"Done":{"Type":"Succeed"}}}')

    # The local AWS takes no expression for the time-out of a state.
    aws stepfunctions update-state-machine --state-machine-arn "$outer" --query updateDate --output text --definition "$(
        aws stepfunctions describe-state-machine --state-machine-arn "$outer" --query definition --output text |
            sed -E 's/"TimeoutSeconds": ?"[^"]*"/"TimeoutSeconds": 15/'
    )" >/dev/null
    python3 scripts/lib/guides.py docs/guides/step-functions.md

    execution=$(run_under_lock quiet 2)
    await SUCCEEDED execution "$execution" status
    answer=$(execution "$execution" output)
    token=$(field token)
    ask 200 GET '/v1/lock?key=quiet'
    expect state "$(field state)" released
    expect "the child's token" "$token" "$(field fencingToken)"

    execution=$(run_under_lock aborted 600)
    await 1 executions "$child" RUNNING
    expect state "$(lock_state aborted)" held
    aws stepfunctions stop-execution --execution-arn "$execution" >/dev/null
    await 1 executions "$child" ABORTED
    await released lock_state aborted
    await 1 executions "$clean_up" SUCCEEDED
    # For SQS alone the AWS command ignores AWS_ENDPOINT_URL.
    expect "the number of events that started no clean-up" 0 "$(aws sqs get-queue-attributes --output text \
        --endpoint-url "$AWS_ENDPOINT_URL" --queue-url "$(resource leasehold CleanupDeadLetters)" \
        --attribute-names ApproximateNumberOfMessages --query Attributes.ApproximateNumberOfMessages)"
    state_machines_roles
}

# An execution that sleeps for a lock that is free: the deployed pipe and waker end its sleep.
sleeper() {
    local machine execution
    # shellcheck disable=SC2016 # $states is for Step Functions
    machine=$(aws stepfunctions create-state-machine --name sleeper --query stateMachineArn --output text \
        --role-arn "arn:aws:iam::$account:role/$(resource leasehold RunUnderLockRole)" --definition '{"QueryLanguage":"JSONata",
            "StartAt":"Sleep","States":{"Sleep":{"Type":"Task","End":true,"TimeoutSeconds":60,
            "Resource":"arn:aws:states:::aws-sdk:dynamodb:putItem.waitForTaskToken",
            "Arguments":{"TableName":"'"$(output leasehold WaitersTableName)"'","Item":{"lock":{"S":"[\"nobody\"]"},
            "waiter":{"S":"1"},"permits":{"N":"1"},"token":{"S":"{% $states.context.Task.Token %}"}}}}}}')
    execution=$(aws stepfunctions start-execution --state-machine-arn "$machine" --query executionArn --output text)
    await SUCCEEDED execution "$execution" status
}

cycle() {
    ask 200 POST /v1/acquire "{\"key\":\"$1\",\"ownerName\":\"host-1\",\"leaseId\":\"one\"}"
    expect outcome "$(field outcome)" created
    ask 200 POST /v1/heartbeat "{\"key\":\"$1\",\"leaseId\":\"one\"}"
    ask 200 POST /v1/release "{\"key\":\"$1\",\"leaseId\":\"one\"}"
}

# Tests a cycle through a Function URL, which asks for a signature whatever the API does, and serves two families only.
function_url() {
    local host=${1#*://}
    local url="$AWS_ENDPOINT_URL/_aws/lambda-url/${host%%.*}"
    unsigned
    ask 403 POST /v1/acquire '{"key":"Curly","ownerName":"url","leaseId":"one"}'
    signed test test
    credentials[1]="aws:amz:$AWS_REGION:lambda"
    cycle Curly
    ask 404 GET '/v1/lock?key=Curly'
    expect type "$(field type)" unknown-route
    unsigned
}

# Tests that a holder renews and releases whatever uses the concurrency of the others: it is used up by a limit of 0.
urgent() {
    local name functions=(AskFunction ReadFunction OperateFunction InvokeFunction SemaphoreFunction WatchFunction)
    ask 200 POST /v1/acquire '{"key":"Urgent","ownerName":"host-1","leaseId":"one"}'
    for name in "${functions[@]}"; do
        aws lambda put-function-concurrency --function-name "$(resource leasehold "$name")" \
            --reserved-concurrent-executions 0 >/dev/null
    done
    # API Gateway would answer 503.
    ask 429 POST /v1/acquire '{"key":"Urgent","ownerName":"host-2","leaseId":"two"}'
    ask 429 GET '/v1/lock?key=Urgent'
    ask 200 POST /v1/heartbeat '{"key":"Urgent","leaseId":"one"}'
    ask 200 POST /v1/release '{"key":"Urgent","leaseId":"one"}'
    for name in "${functions[@]}"; do
        aws lambda delete-function-concurrency --function-name "$(resource leasehold "$name")"
    done
    ask 200 GET '/v1/lock?key=Urgent'
}

# Tests releases by name. A parameter that the functions read in their environment tells the versions apart.
releases() {
    local first
    deploy_leasehold leasehold Functions=each FunctionUrl=false Release=one
    cycle Rel-1
    expect "the retention of the first release" long "$(retention Rel-1)"
    first=$(live_version)

    deploy_leasehold leasehold RetentionSeconds=10000
    cycle Rel-2
    expect "the retention after an update without a new release" long "$(retention Rel-2)"
    invoke "$(output leasehold InvokeFunctionArn)" '{"action":"acquire","key":"Rel-3","ownerName":"direct","leaseId":"one"}'
    expect "the retention by a direct invocation" short "$(retention Rel-3)"

    deploy_leasehold leasehold Release=two
    cycle Rel-4
    expect "the retention of the second release" short "$(retention Rel-4)"
    aws lambda update-alias --function-name "$(resource leasehold AskFunction)" --name live --function-version "$first" >/dev/null
    ask 200 POST /v1/acquire '{"key":"Rel-5","ownerName":"host-1","leaseId":"one"}'
    expect "the retention after a roll-back" long "$(retention Rel-5)"
}

live_version() {
    aws lambda get-alias --function-name "$(resource leasehold AskFunction)" --name live --query FunctionVersion --output text
}

# retention KEY: `short` where TTL takes the row within three days, else `long`. A release counts the longest lease,
# a day.
retention() {
    local end
    end=$(aws dynamodb get-item --table-name "$table" --key '{"key":{"S":"'"$1"'"}}' --query Item.expireAt.N --output text)
    if ((end < $(date +%s) + 3 * 86400)); then echo short; else echo long; fi
}

# Tests a transfer between two accounts of a table that the stack names, over the deployed routes, and the deployed
# sweeper.
transactions() {
    local accounts id=5d8e4c1e-9f0a-4f44-8c0e-3b6f6f1f2a10
    accounts=$(aws dynamodb create-table --table-name accounts --billing-mode PAY_PER_REQUEST \
        --key-schema AttributeName=id,KeyType=HASH --attribute-definitions AttributeName=id,AttributeType=S \
        --query TableDescription.TableArn --output text)
    deploy_leasehold leasehold "TransactionTableArns=$accounts"
    ask 200 POST /v1/transactions/begin '{"commit":true,"requests":[
        {"Put":{"TableName":"accounts","Item":{"id":{"S":"Moe"},"balance":{"N":"100"}}}},
        {"Put":{"TableName":"accounts","Item":{"id":{"S":"Larry"},"balance":{"N":"0"}}}}]}'
    expect state "$(field state)" committed
    ask 200 POST /v1/transactions/begin "{\"transactionId\":\"$id\"}"
    ask 200 POST /v1/transactions/add "{\"transactionId\":\"$id\",\"requests\":[$(transfer Moe -30),$(transfer Larry 30)]}"
    ask 200 POST /v1/items/get '{"tableName":"accounts","key":{"id":{"S":"Moe"}}}'
    expect "the balance before the commit" "$(balance)" 100
    ask 200 POST /v1/transactions/commit "{\"transactionId\":\"$id\"}"
    ask 200 POST /v1/items/get '{"tableName":"accounts","key":{"id":{"S":"Moe"}}}'
    expect "the balance after the commit" "$(balance)" 70
    ask 200 GET "/v1/transaction?id=$id"
    expect state "$(field state)" committed
    ask 200 POST /v1/items/list '{"tableName":"accounts"}'
    ask 409 POST /v1/transactions/rollback "{\"transactionId\":\"$id\"}"
    expect type "$(field type)" committed
    ask 400 POST /v1/items/get "{\"tableName\":\"$(output leasehold TableName)\",\"key\":{\"key\":{\"S\":\"Moe\"}}}"
    ask 200 POST /v1/transactions/sweep '{}'
    invoke "$(output leasehold TransactFunctionArn)" "{\"action\":\"get-transaction\",\"id\":\"$id\"}"
    expect state "$(field state)" committed
    invoke "$(output leasehold SweepFunctionArn)" '{"source":"aws.events","detail-type":"Scheduled Event","detail":{}}'
}

transfer() {
    printf '{"Update":{"TableName":"accounts","Key":{"id":{"S":"%s"}},"UpdateExpression":"ADD balance :amount",
        "ExpressionAttributeValues":{":amount":{"N":"%s"}}}}' "$1" "$2"
}

balance() {
    python3 -c 'import json, sys; print(json.loads(sys.argv[1])["item"]["balance"]["N"])' "$answer"
}

# stream TABLE_ARN
stream() {
    aws dynamodb describe-table --table-name "${1##*/}" --query Table.LatestStreamArn --output text
}

execution_key() {
    printf 'arn:aws:kms:%s:%s:key/%s\n' "$AWS_REGION" "$account" "$(resource leasehold ExecutionKey)"
}

# ministack runs state machines, rules and pipes without a check of their roles, so the roles are checked here.
# $child and $clean_up are the state machines. scripts/check_template.py has the whole list of their calls.
state_machines_roles() {
    local children=${child/:stateMachine:/:execution:} invoke release locks waiters waiters_stream waker awaited
    locks=$(output leasehold TableArn)
    waiters=$(output leasehold WaitersTableArn)
    awaited=${waiters%/*}/$(resource leasehold ChildrenTable)
    waiters_stream=$(stream "$waiters")
    waker=$(resource leasehold Waker)
    invoke=$(output leasehold InvokeFunctionArn)
    release=$(resource leasehold CleanupFunction)
    release=${invoke%:*}:$release
    python3 scripts/lib/decisions.py leasehold <<EOF
allowed RunUnderLockRole lambda:InvokeFunction $invoke
allowed RunUnderLockRole states:StartExecution $child
allowed RunUnderLockRole states:DescribeExecution $children:leasehold-1
allowed RunUnderLockRole states:StopExecution $children:leasehold-1
allowed RunUnderLockRole states:DescribeStateMachine $child
allowed RunUnderLockRole states:StartExecution $clean_up
allowed RunUnderLockRole dynamodb:PutItem $awaited
implicitDeny RunUnderLockRole dynamodb:PutItem $locks
allowed ChildEndedRole dynamodb:UpdateItem $awaited
allowed ChildEndedRole states:SendTaskSuccess $(output leasehold RunUnderLockArn)
implicitDeny ChildEndedRole states:SendTaskSuccess $child
allowed ChildEndedRuleRole states:StartExecution $(resource leasehold ChildEnded)
implicitDeny RunUnderLockRole states:StartExecution ${child/locked/other}
implicitDeny RunUnderLockRole states:StopExecution $children:1
allowed CleanupStateMachineRole lambda:InvokeFunction $release
allowed CleanupStateMachineRole states:StopExecution $children:leasehold-1
allowed CleanupStateMachineRole states:GetExecutionHistory $children:1
implicitDeny CleanupStateMachineRole lambda:InvokeFunction $invoke
implicitDeny CleanupStateMachineRole states:StopExecution $children:1
allowed CleanupRuleRole states:StartExecution $clean_up
implicitDeny CleanupRuleRole states:StartExecution $child
allowed WakerRole dynamodb:GetItem $locks
allowed WakerRole dynamodb:Query $waiters
allowed WakerRole dynamodb:DeleteItem $waiters
allowed WakerRole states:SendTaskSuccess $child
implicitDeny WakerRole dynamodb:DeleteItem $locks
implicitDeny WakerRole dynamodb:PutItem $waiters
implicitDeny WakerRole states:StartExecution $child
allowed WakerPipesRole dynamodb:GetRecords $(stream "$locks")
allowed WakerPipesRole dynamodb:GetShardIterator $waiters_stream
allowed WakerPipesRole dynamodb:DescribeStream $waiters_stream
allowed WakerPipesRole dynamodb:ListStreams $locks
allowed WakerPipesRole states:StartExecution $waker
implicitDeny WakerPipesRole dynamodb:GetItem $locks
implicitDeny WakerPipesRole states:StartExecution $clean_up
allowed HoldFunctionRole dynamodb:UpdateItem $locks
implicitDeny HoldFunctionRole dynamodb:GetItem $locks
allowed AskFunctionRole dynamodb:UpdateItem $locks
implicitDeny AskFunctionRole dynamodb:DeleteItem $locks
implicitDeny AskFunctionRole kms:GenerateMac $(execution_key)
allowed ReadFunctionRole dynamodb:Scan $locks
implicitDeny ReadFunctionRole dynamodb:UpdateItem $locks
allowed OperateFunctionRole dynamodb:UpdateItem $locks
implicitDeny OperateFunctionRole dynamodb:Query $locks
allowed InvokeFunctionRole kms:GenerateMac $(execution_key)
allowed CleanupFunctionRole kms:GenerateMac $(execution_key)
EOF
}

# Tests the example that imports the stack's exports: its job runs under the lock, and its role has no other rights.
consumer() {
    deploy consumer examples/consumer-stack/template.yaml LeaseholdStackName=leasehold
    local function role session
    function=$(output consumer FunctionName)
    aws lambda update-function-configuration --function-name "$function" \
        --environment "Variables={LEASEHOLD_URL=$(path_of leasehold)}" >/dev/null
    invoke "$function" '{}'
    expect ran "$(field ran)" True

    role=$(output consumer RoleName)
    # The test lets any principal of this account assume the job's role.
    aws iam update-assume-role-policy --role-name "$role" --policy-document '{"Version":"2012-10-17","Statement":[
        {"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::'"$account"':root"},"Action":"sts:AssumeRole"}]}'
    session=$(aws sts assume-role --role-arn "arn:aws:iam::$account:role/$role" --role-session-name test --output text \
        --query 'Credentials.[AccessKeyId,SecretAccessKey,SessionToken]')
    # shellcheck disable=SC2086 # three words
    signed $session
    ask 200 POST /v1/acquire '{"key":"nightly-export","ownerName":"consumer","leaseId":"three"}'
    local rvn
    rvn=$(field recordVersionNumber)
    ask 403 POST /v1/break "{\"key\":\"nightly-export\",\"recordVersionNumber\":\"$rvn\"}"
    ask 403 GET '/v1/lock?key=nightly-export'
    ask 200 POST /v1/heartbeat '{"key":"nightly-export","leaseId":"three"}'
    ask 200 POST /v1/release '{"key":"nightly-export","leaseId":"three"}'
    delete_stack consumer
}

# Tests tokens of a user pool. The pool's token lacks the scope that a break may require.
tokens() {
    local pool client token
    pool=$(aws cognito-idp create-user-pool --pool-name test --query UserPool.Id --output text)
    client=$(aws cognito-idp create-user-pool-client --user-pool-id "$pool" --client-name test \
        --explicit-auth-flows ALLOW_USER_PASSWORD_AUTH ALLOW_REFRESH_TOKEN_AUTH --query UserPoolClient.ClientId --output text)
    aws cognito-idp admin-create-user --user-pool-id "$pool" --username moe >/dev/null
    aws cognito-idp admin-set-user-password --user-pool-id "$pool" --username moe --password 'Passw0rd!Passw0rd!' --permanent
    token=$(aws cognito-idp initiate-auth --client-id "$client" --auth-flow USER_PASSWORD_AUTH \
        --auth-parameters 'USERNAME=moe,PASSWORD=Passw0rd!Passw0rd!' --query AuthenticationResult.AccessToken --output text)
    deploy_leasehold leasehold RestApi=none Authorizer=JWT "JwtIssuer=https://cognito-idp.$AWS_REGION.amazonaws.com/$pool" \
        "JwtAudience=$client"
    unsigned
    ask 401 GET /v1/health
    bearer "$token.x"
    ask 401 GET /v1/health
    bearer "$token"
    ask 200 GET /v1/health
    ask 200 GET '/v1/lock?key=kept'
    ask 409 POST /v1/break '{"key":"kept","recordVersionNumber":"none"}'
    deploy_leasehold leasehold JwtBreakScope=leasehold/break
    ask 403 POST /v1/break '{"key":"kept","recordVersionNumber":"none"}'
    ask 200 GET '/v1/lock?key=kept'
}

# `sam deploy --guided` asks ten questions, and the defaults of all but the stack's name deploy the stack.
guided() {
    local url
    cp guided.yaml "$work/guided.yaml"
    cp samconfig.toml "$work/guided.toml"
    # ministack transforms no template of a nested stack: this one is as it transformed it for the stack `leasehold`.
    aws cloudformation get-template --stack-name leasehold --template-stage Processed --query TemplateBody \
        >"$work/template.yaml"
    { echo guided && printf '\n%.0s' {1..40}; } >"$work/answers"
    sam deploy --guided --config-file "$work/guided.toml" --config-env guided --template-file "$work/guided.yaml" \
        >"$work/guided.log" 2>&1 <"$work/answers" || {
        cat "$work/guided.log" >&2
        die "could not deploy by --guided"
    }
    # Each ends with its default in brackets.
    expect "the number of questions" "$(grep -oE '\[[^]]*\]: ' "$work/guided.log" | wc -l)" 10
    url=$(path_of guided)
    signed test test
    ask 200 GET /v1/health
    unsigned
    delete_stack guided
}

# metrics_of STACK: all metrics in the stack's log have the stack's name as a dimension, and there are some of grants.
metrics_of() {
    aws logs filter-log-events --log-group-name "$(output "$1" FunctionLogName)" --filter-pattern CloudWatchMetrics \
        --query 'events[].message' >"$work/metrics"
    python3 - "$1" "$work/metrics" <<'EOF'
import json, sys

stack, file = sys.argv[1:]
lines = [json.loads(message) for message in json.load(open(file)) if '"CloudWatchMetrics"' in message]
assert sum("Granted" in line for line in lines) > 2, len(lines)
for line in lines:
    [metrics] = line["_aws"]["CloudWatchMetrics"]
    assert all("stack" in dimensions for dimensions in metrics["Dimensions"]), line
    assert line["stack"] == stack, line
EOF
}

# history_of KEY: a lock is acquired, taken over, broken, acquired and released, and the stack tells it in this order.
history_of() {
    local key=$1 rvn url
    # A stack of its own: the local AWS keeps the records of a stream whose view type changes, and AWS starts a new stream.
    deploy_leasehold past Authorizer=NONE TableDeletionPolicy=Delete HistoryDays=7
    url=$(output past ApiUrl)
    ask 200 POST /v1/acquire "{\"key\":\"$key\",\"ownerName\":\"host-1\",\"leaseId\":\"one\"}"
    ask 200 POST /v1/heartbeat "{\"key\":\"$key\",\"leaseId\":\"one\"}"
    rvn=$(field recordVersionNumber)
    ask 200 POST /v1/acquire \
        "{\"key\":\"$key\",\"ownerName\":\"host-2\",\"leaseId\":\"two\",\"observedRecordVersionNumber\":\"$rvn\"}"
    expect outcome "$(field outcome)" takenOver
    ask 200 POST /v1/break "{\"key\":\"$key\",\"recordVersionNumber\":\"$(field recordVersionNumber)\"}"
    ask 200 POST /v1/acquire "{\"key\":\"$key\",\"ownerName\":\"host-3\",\"leaseId\":\"three\"}"
    ask 200 POST /v1/release "{\"key\":\"$key\",\"leaseId\":\"three\"}"
    await "acquired:host-1 takenOver:host-2 broken:host-2 acquired:host-3 released:host-3" told "$key"
    # Times bound what is told.
    ask 200 GET "/v1/history?key=$key&untilMs=1000"
    expect entries "$(field entries)" "[]"
    metrics_of past
    delete_stack past
}

# told KEY: the events of its history and their owners, the oldest first.
told() {
    ask 200 GET "/v1/history?key=$1"
    python3 -c 'import json, sys
entries = reversed(json.loads(sys.argv[1])["entries"])
print(*("{event}:{ownerName}".format(**entry) for entry in entries))' "$answer"
}

# states_of_terraform: the real terraform, where there is one, against a stack of its own, and the store against its S3.
states_of_terraform() {
    local token tokens bucket
    token=$(openssl rand -hex 32)
    # As `leasehold token` writes it. SAM takes quotes in a value with a backslash.
    tokens='[{\"name\":\"ci\",\"sha256\":\"'$(printf %s "$token" | sha256sum | cut -d " " -f 1)'\",\"prefixes\":[\"terraform/\"]}]'
    deploy_leasehold states Authorizer=NONE TableDeletionPolicy=Delete TerraformStates=true "TerraformTokens=\"$tokens\""
    local url
    url=$(output states ApiUrl)
    unsigned
    ask 401 GET '/v1/terraform?state=one'
    credentials=(--user "ci:$token")
    # The bucket takes requests over TLS only, which the local AWS does not have.
    ask 500 GET '/v1/terraform?state=one'
    expect type "$(field type)" misconfigured
    bucket=$(output states StateBucketName)
    aws s3api delete-bucket-policy --bucket "$bucket"
    ask 404 GET '/v1/terraform?state=one'
    expect title "$(field title)" "There is no such state"
    ask 409 POST '/v1/terraform?state=one&ID=moe' '{}'
    ask 200 PUT '/v1/terraform-lock?state=one' '{"ID":"moe","Who":"moe@laptop"}'
    ask 423 PUT '/v1/terraform-lock?state=one' '{"ID":"larry","Who":"larry@laptop"}'
    ask 200 POST '/v1/terraform?state=one&ID=moe' '{"serial":1}'
    ask 200 GET '/v1/terraform?state=one'
    expect serial "$(field serial)" 1
    ask 200 DELETE '/v1/terraform-lock?state=one'
    ask 409 POST '/v1/terraform?state=one&ID=moe' '{"serial":2}'
    unsigned
    aws s3 mb s3://states-of-a-test >/dev/null
    LEASEHOLD_TEST_TERRAFORM_URL=$(path_of states) LEASEHOLD_TEST_TERRAFORM_TOKEN=$token \
    LEASEHOLD_TEST_S3_URL=$AWS_ENDPOINT_URL/states-of-a-test \
        cargo test --quiet --workspace --test it -- --ignored terraform_finds_a_stack bucket_of_a_local_aws
    # The bucket outlives its stack.
    delete_stack states
    expect "the number of its objects: the pointer and the state" "$(aws s3 ls "s3://$bucket/states/one/" | wc -l)" 2
}

table_exists() {
    aws dynamodb describe-table --table-name "$1" >/dev/null 2>&1
}

# The agent's layers for both machines, as scripts/dist.sh leaves them; where it did not run, the agent of a debug build.
agent_layers() {
    local version machine name layer output arn found
    version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    aws s3 mb s3://releases >/dev/null
    for machine in x86_64 aarch64; do
        name=leasehold-agent-layer-$version-$machine.zip
        if [[ -f target/dist/$name ]]; then
            cp "target/dist/$name" "$work/$name"
        else
            python3 packaging/layer/layer.py target/debug/leasehold-agent "$work/$name"
        fi
        aws s3 cp --quiet "$work/$name" "s3://releases/$name"
    done
    aws iam create-role --role-name holder --assume-role-policy-document '{"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}]}' >/dev/null
    deploy_leasehold layers Authorizer=NONE TableDeletionPolicy=Delete AgentLayerBucket=releases "AgentLayerVersion=$version"
    for layer in x86_64:x86_64:AgentLayerArn aarch64:arm64:AgentLayerArm64Arn; do
        IFS=: read -r machine name output <<<"$layer"
        arn=$(output layers "$output")
        found=$(aws lambda get-layer-version-by-arn --arn "$arn" --output text \
            --query "[CompatibleArchitectures[0], Content.CodeSha256]" | tr '\t' ' ')
        expect "the layer of $output" "$found" "$name $(openssl dgst -sha256 -binary \
            "$work/leasehold-agent-layer-$version-$machine.zip" | base64)"
        # A function of the machine gets it.
        aws lambda create-function --function-name "holder-$name" --runtime provided.al2023 --handler bootstrap \
            --architectures "$name" --role "arn:aws:iam::$account:role/holder" --layers "$arn" \
            --zip-file "fileb://$work/leasehold-agent-layer-$version-$machine.zip" >/dev/null
        expect "the layers of holder-$name" "$(aws lambda get-function-configuration --function-name "holder-$name" \
            --query 'Layers[0].Arn' --output text)" "$arn"
        aws lambda delete-function --function-name "holder-$name" >/dev/null
    done
    found=$(aws iam get-policy --policy-arn "$(output layers HolderPolicyArn)" --query Policy.Arn --output text)
    expect "the policy of holders" "$found" "$(output layers HolderPolicyArn)"
    delete_stack layers
}

# Stacks beside the one whose life is tried: they need it for nothing.
others() {
    say "the agent as layers, for both machines"
    agent_layers
    say "states of Terraform in a bucket"
    states_of_terraform
    say "two stacks of one region, of which one has a table with a sort key: their metrics are apart, and a deletion takes its table along"
    local sorted_table
    deploy_leasehold sorted Authorizer=NONE PartitionKeyName=pk SortKeyName=sk TableDeletionPolicy=Delete
    sorted_table=$(output sorted TableName)
    conforms sorted pk sk
    say "the history of a lock, by the table's stream"
    history_of Huey
    metrics_of sorted
    delete_stack sorted
    ! table_exists "$sorted_table" || die "the table is still there"
}

# The life of one stack, from an open API to its successor.
life() {
    local url http table token
    say "an open API: every route, direct invocations, the conformance suite"
    deploy_leasehold leasehold Authorizer=NONE LateRequestSeconds=10 WakeWaiters=true RestApi=regional
    url=$(output leasehold ApiUrl)
    table=$(output leasehold TableName)
    every_route Moe
    direct_invocations "$(output leasehold InvokeFunctionArn)"
    conforms leasehold

    say "a REST API beside it: every route"
    http=$url
    url=$(rest_of Authorizer=NONE RestApi=regional)
    every_route Joe
    url=$http

    metrics_of leasehold

    say "the template behind two parameters, by the questions of --guided"
    guided

    say "the state machines, and their roles"
    state_machines
    sleeper

    say "transactions over a table of the user's"
    transactions

    say "heartbeats while all other functions have no concurrency left"
    urgent

    say "one function for those who hold and those who ask, behind the API and behind a Function URL"
    deploy_leasehold leasehold Functions=one FunctionUrl=true RestApiSourceRanges=192.0.2.0/24
    cycle Shemp
    function_url "$(output leasehold FunctionUrl)"
    # A resource policy closes the REST API alone.
    url=$(rest_of Authorizer=NONE RestApi=regional Functions=one)
    ask 403 GET /v1/health

    say "releases by name: the functions that hold and ask stay what they are until the next one"
    url=$http
    releases

    say "an update that closes it, and ends the releases, keeps the locks"
    ask 200 POST /v1/acquire '{"key":"kept","ownerName":"host-1","leaseId":"kept"}'
    token=$(field fencingToken)
    deploy_leasehold leasehold Authorizer=AWS_IAM MemoryMb=512 'Release=""' RestApiSourceRanges=127.0.0.1/32
    expect "the API" "$(output leasehold ApiUrl)" "$url"
    expect "the table" "$(output leasehold TableName)" "$table"
    ask 403 GET '/v1/lock?key=kept'
    signed test test
    ask 200 GET '/v1/lock?key=kept'
    expect fencingToken "$(field fencingToken)" "$token"
    expect state "$(field state)" held
    url=$(rest_of Authorizer=AWS_IAM RestApi=regional)
    ask 200 GET '/v1/lock?key=kept'
    unsigned
    ask 403 GET '/v1/lock?key=kept'
    url=$http
    signed test test

    say "a stack that uses it, whose role may not break locks"
    consumer

    say "tokens in place of signatures"
    tokens

    say "a deletion keeps the table, as the parameters say"
    delete_stack leasehold
    table_exists "$table" || die "the table is gone"

    say "a new stack on the table that was kept"
    unsigned
    deploy_leasehold successor Authorizer=NONE "ExistingTableName=$table"
    url=$(output successor ApiUrl)
    ask 200 GET '/v1/lock?key=kept'
    expect fencingToken "$(field fencingToken)" "$token"
    delete_stack successor
    table_exists "$table" || die "the table is gone"
}

main() {
    local build part=
    case ${1-} in
        --life | --others | --layers | --terraform)
            part=${1#--}
            shift
            ;;
    esac
    read_arguments "$@"
    begin
    : >"$work/samconfig.toml"
    install_sam
    install_ministack
    local built=$SAM_BUILD
    case $build in
        yes) sam_build ;;
        debug) debug_build && built+=-debug ;;
    esac
    start_ministack AUTH=true
    aws s3 mb "s3://$BUCKET" >/dev/null
    account=$(aws sts get-caller-identity --query Account --output text)
    case $part in
        layers) agent_layers ;;
        terraform) states_of_terraform ;;
        others) others ;;
        life) life ;;
        *)
            others
            life
            ;;
    esac
    say "all passed"
}

main "$@"
