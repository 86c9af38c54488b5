"""Tests check_template.py: for each of its rules a template that breaks the rule, which the rule must refuse.

Called by template.sh. Argument, optional: the beginning of the names of the rules to test.
"""

import contextlib
import io
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import check_template

import stacks

# The rule that must refuse, a pattern in the template, and what takes the place of its first match.
MUTANTS = (
    ("check_defaults", r"Type: String, Default: sub", "Type: String"),
    ("check_repository", r"SemanticVersion: ", "SemanticVersion: 9."),
    ("check_repository", r"LicenseUrl: ", "LicenseUrl: missing/"),
    ("check_actions", r"dynamodb:Query, dynamodb:Scan\]", "dynamodb:Query]"),
    (
        "check_actions",
        r"DescribeTable, dynamodb:GetItem, dynamodb:Query",
        "DescribeTable, dynamodb:PutItem, dynamodb:Query",
    ),
    ("check_calls", r"          /v1/want: \*rest-ask\n", ""),
    ("check_calls", r"/v1/semaphore/capacity: \*rest-operate", "/v1/semaphore/capacity: *rest-ask"),
    (
        "check_calls",
        r"Action: \[states:DescribeExecution, states:StopExecution\]",
        "Action: [states:DescribeExecution]",
    ),
    ("check_calls", r"Action: states:SendTaskSuccess", "Action: [states:SendTaskSuccess, states:SendTaskFailure]"),
    ("check_regions", r"!Equals \[!Ref AWS::Region, ca-west-1\]", "!Equals [!Ref AWS::Region, nowhere]"),
    ("check_families", r"\[ReservesHold, !Ref HoldConcurrency", "[ReservesHold, !Ref MemoryMb"),
    ("check_families", r"ReservesHold: .*", 'ReservesHold: !Not [!Equals [!Ref Release, "none"]]'),
    ("check_families", r"Role: !GetAtt CleanupFunctionRole", "Role: !GetAtt InvokeFunctionRole"),
    ("check_families", r"(AskThrottlesAlarm: [^\n]*Dimensions: \*)of-ask", r"\1of-hold"),
    ("check_families", r"(OperateErrorsAlarm: [^\n]*\n[^\n]*)OperateFunction", r"\1ReadFunction"),
    ("check_families", r"ANY /v1/semaphore/break: \*operate-throttling", "ANY /v1/semaphore/break: *hold-throttling"),
    ("check_families", r"        ANY /v1/transactions/unlock: \*sweep-throttling\n", ""),
    ("check_families", r", !Ref UnlockRoute\]", "]"),
    ("check_families", r"\[HeartbeatRoute, ReleaseRoute", "[ReleaseRoute"),
    ("check_attributes", r"\[brokenVersion, capacity, ", "[capacity, "),
    ("check_attributes", r"dynamodb:Attributes: \[available, capacity, ", "dynamodb:Attributes: [available, "),
    ("check_attributes", r"Statement: \[\*gets, \*holds\]", "Statement: [*gets, *asks]"),
    ("check_function_roles", r"Resource: !GetAtt FunctionLog.Arn }", 'Resource: "*" }'),
    ("check_function_roles", r"!If \[HasVpc, { Effect", "!If [UsesJwt, { Effect"),
    ("check_function_roles", r"!GetAtt ExecutionKey.Arn } }", '"{{resolve:secretsmanager:one}}" } }'),
    ("check_function_roles", r"\[TracesActively, ", "[MakesTable, "),
    ("check_trust", r"(Principal: { Service: pipes[^\n]*), Condition: \*of-this-account", r"\1"),
    ("check_keys", r"kms:ViaService: ", "kms:CallerAccount: "),
    (
        "check_keys",
        r"\[HasEnvironmentKmsKey, { Effect: Allow, Action: kms:Decrypt",
        "[HasEnvironmentKmsKey, { Effect: Allow, Action: kms:Encrypt",
    ),
    ("check_crash_filter", r'\$\.type = "platform\.\*" && ', ""),
    ("check_crash_filter", r"{ \(\$\.type = [^\n]*\n[^\n]*}", '"Task timed out"'),
    ("check_waking", r'\[{"prefix": "1"}', '[{"prefix": "0"}, {"prefix": "1"}'),
    ("check_waking", r"LogConfiguration: { Level: ERROR", "LogConfiguration: { Level: OFF"),
    ("check_waking", r"IncludeExecutionData: false", "IncludeExecutionData: true"),
    ("check_waking", r"!GetAtt WakerDeadLetters.QueueName", "!GetAtt CleanupDeadLetters.QueueName"),
    ("check_history", r"HasHistory, NEW_AND_OLD_IMAGES", "HasHistory, NEW_IMAGE"),
    ("check_history", r"Value: !GetAtt RecordDeadLetters.QueueName", "Value: !GetAtt WakerDeadLetters.QueueName"),
    ("check_history", r"StartingPosition: TRIM_HORIZON", "StartingPosition: LATEST"),
    ("check_history", r"BisectBatchOnFunctionError: true", "BisectBatchOnFunctionError: false"),
    ("check_history", r"HasHistory: .*", 'HasHistory: !Not [!Equals [!Ref Release, "none"]]'),
    ("check_actions", r"Action: \[dynamodb:BatchWriteItem\]", "Action: [dynamodb:BatchWriteItem, dynamodb:DeleteItem]"),
    ("check_terraform", r"(  StateBucket:\n[^\n]*\n[^\n]*\n    DeletionPolicy: )Retain", r"\1Delete"),
    (
        "check_terraform",
        r"VersioningConfiguration: { Status: Enabled }",
        "VersioningConfiguration: { Status: Suspended }",
    ),
    ("check_terraform", r"SSEAlgorithm: AES256", "SSEAlgorithm: none"),
    ("check_terraform", r"BlockPublicPolicy: true", "BlockPublicPolicy: false"),
    (
        "check_terraform",
        r"Enabled, NoncurrentVersionExpiration",
        "Enabled, ExpirationInDays: 1, NoncurrentVersionExpiration",
    ),
    ("check_terraform", r'aws:SecureTransport: "false"', 'aws:SecureTransport: "true"'),
    ("check_terraform", r"\[!GetAtt StateBucket.Arn, !Sub", "[!Sub"),
    ("check_terraform", r'"\$\{StateBucket.Arn\}/states/\*"', '"${StateBucket.Arn}/*"'),
    (
        "check_terraform",
        r"\[s3:GetObject, s3:PutObject, s3:DeleteObject\]",
        "[s3:GetObject, s3:PutObject, s3:DeleteObjectVersion]",
    ),
    (
        "check_terraform",
        r"AuthorizationType: !If \[HasTerraformTokens, NONE",
        "AuthorizationType: !If [HasTerraform, NONE",
    ),
    ("check_terraform", r"AuthorizerId: !If \[TerraformUsesJwt", "AuthorizerId: !If [UsesJwt"),
    ("check_terraform", r"security: !If \[TerraformIsSigned", "security: !If [HasTerraformTokens"),
    ("check_terraform", r"!If \[HasTerraformTokens, { Effect", "!If [HasTerraform, { Effect"),
    ("check_terraform", r"HasTerraform: .*", 'HasTerraform: !Not [!Equals [!Ref Release, "none"]]'),
    ("check_several_regions", r"        LEASEHOLD_MULTI_REGION: .*\n", ""),
    ("check_several_regions", r"rate\(6 hours\)", "rate(6 days)"),
    ("check_several_regions", r"IsMultiRegion: .*", 'IsMultiRegion: !Not [!Equals [!Ref Release, "none"]]'),
    ("check_several_regions", r"Assert: !Contains \[!Ref TransactionTableArns, \"\"\]", 'Assert: !Equals ["", ""]'),
    ("check_actions", r"Action: \[dynamodb:DeleteItem, dynamodb:DescribeTable", "Action: [dynamodb:DescribeTable"),
    ("check_redrives", r'redriveCount: \[{ numeric: \[">", 0\] }\]', 'redriveCount: [{ numeric: [">", 1] }]'),
    ("check_redrives", r"name: \[{ prefix: leasehold- }\]", "name: [{ prefix: lease- }]"),
    ("check_redrives", r", !GetAtt RedrivenChildRule.Arn\]", "]"),
    ("check_children", r"status: \[SUCCEEDED, FAILED, TIMED_OUT, ABORTED\]", "status: [SUCCEEDED, FAILED, TIMED_OUT]"),
    (
        "check_children",
        r"- Id: wake\n          Arn: !Ref ChildEnded",
        "- Id: wake\n          Arn: !Ref CleanupStateMachine",
    ),
    ("check_exports", r"  TableArn: { Value", "  TableArn: { Export: { Name: table }, Value"),
    ("check_key_names", r"    DependsOn: KeyNamesGuard\n", ""),
    ("check_key_names", r"      TableName: !Sub \$\{AWS::StackName\}-key-names-cannot-change\n", ""),
    ("check_permissions", r"DependsOn: OperatePermission", "DependsOn: ReadPermission"),
    ("check_rest_api_policy", r"\[RestApiIsSigned, { AWS", "[HasRestApiSourceRanges, { AWS"),
    ("check_rest_api_policy", r"StringNotEquals: { aws:SourceVpce", "StringEquals: { aws:SourceVpce"),
    ("check_deploying_role", r"Service: pipes.amazonaws.com", "Service: scheduler.amazonaws.com"),
    ("check_deploying_role", r"(  Dashboard:\n    Type: )AWS::CloudWatch::Dashboard", r"\1AWS::KMS::Alias"),
    ("check_release", r", DEPLOYMENT_STOP_ON_ALARM", ""),
    (
        "check_release",
        r"&ask-arn !If \[HasRelease, !Ref AskLive, !GetAtt AskFunction.Arn\]",
        "&ask-arn !GetAtt AskFunction.Arn",
    ),
    ("check_sweep_time", r"Timeout: 900", "Timeout: 860"),
)


def survives(rule, mutated):
    """Whether the rule accepts the template."""
    stacks.read = lambda: stacks.parsed(mutated)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(check_template, rule)()
    # A rule refuses by an assertion, or by an end of the script with the difference.
    except (AssertionError, SystemExit, KeyError, ValueError):
        return False
    return True


def main(beginning=""):
    template = (stacks.ROOT / "template.yaml").read_text()
    untested = {check.__name__ for check in check_template.CHECKS} - {rule for rule, _, _ in MUTANTS}
    assert not untested, f"no template breaks {untested}"
    survivors = []
    for rule, pattern, replacement in MUTANTS:
        if rule.startswith(beginning):
            mutated, changes = re.subn(pattern, replacement, template, count=1)
            assert changes and mutated != template, f"{rule}: the template has no {pattern}"
            if survives(rule, mutated):
                survivors.append(f"{rule} accepts {pattern} -> {replacement}")
    if survivors:
        sys.exit("\n".join(survivors))
    print(f"  {sum(rule.startswith(beginning) for rule, _, _ in MUTANTS)} broken templates: each refused by its rule")


if __name__ == "__main__":
    main(*sys.argv[1:])
