"""Signature Version 4: botocore's own, and one that arrives."""

from __future__ import annotations

import datetime
import hashlib
import hmac

import pytest
from conftest import MakeClient, RunPython, finished
from proxy import Proxy, Seen

pytest.importorskip("botocore", reason="the extra leasehold[aws] is not installed")

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from leasehold import Forbidden, InvalidRequest, Request
from leasehold.aws import SigV4

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
CREDENTIALS = Credentials("AKIDEXAMPLE", SECRET, "a-session-token")


def test_known_request_has_botocores_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime.datetime(2015, 8, 30, 12, 36, tzinfo=datetime.timezone.utc)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: moment, raising=True)
    url, body = "https://api.example.com/prod/v1/acquire", b'{"key":"Moe"}'
    headers = {"Content-Type": "application/json"}
    expected = AWSRequest("POST", url, headers=dict(headers), data=body)
    botocore.auth.SigV4Auth(CREDENTIALS, "execute-api", "eu-west-1").add_auth(expected)
    signed = SigV4("eu-west-1", credentials=CREDENTIALS)(Request("POST", url, headers, body))
    assert signed["Authorization"] == expected.headers["Authorization"]
    assert "20150830/eu-west-1/execute-api/aws4_request" in signed["Authorization"]
    assert signed["X-Amz-Security-Token"] == "a-session-token"


@pytest.mark.parametrize(
    ("host", "service"),
    [
        ("abc.lambda-url.eu-west-1.on.aws", "lambda"),
        ("abc.execute-api.eu-west-1.amazonaws.com", "execute-api"),
        ("abc.lambda-url.example.com", "execute-api"),
    ],
)
def test_function_url_is_signed_for_lambda(host: str, service: str) -> None:
    signed = SigV4("eu-west-1", credentials=CREDENTIALS)(Request("GET", f"https://{host}/v1/lock", {}, None))
    assert f"/eu-west-1/{service}/aws4_request" in signed["Authorization"]


@pytest.mark.parametrize("key", ["Moe", "a b+c/ü=&%?~*'"])
def test_request_arrives_as_it_was_signed(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url, auth=SigV4("eu-west-1", credentials=CREDENTIALS))
    client.acquire(key).granted().release()
    client.get(key)
    list(client.list(owner_name="o w", state="held"))
    assert {seen.action for seen in proxy.seen} >= {"acquire", "release", "lock", "locks"}
    for seen in proxy.seen:
        assert signature(seen) == seen.headers["Authorization"].split("Signature=")[1], seen.path


def signature(seen: Seen) -> str:
    """Computes the signature of an arriving request, by AWS's documentation."""
    given = {name.lower(): value for name, value in seen.headers.items()}
    authorization = given["authorization"]
    scope = authorization.split("Credential=AKIDEXAMPLE/")[1].split(",")[0]
    names = authorization.split("SignedHeaders=")[1].split(",")[0]
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(names.split(";"))
    path, _, query = seen.path.partition("?")
    canonical = "\n".join(
        [
            seen.method,
            path,
            "&".join(sorted(query.split("&"))),
            *(f"{name}:{given[name]}" for name in names.split(";")),
            "",
            names,
            hashlib.sha256(seen.content).hexdigest(),
        ]
    )
    to_sign = "\n".join(
        ["AWS4-HMAC-SHA256", given["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    secret = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return hmac.new(secret, to_sign.encode(), "sha256").hexdigest()


def test_missing_region_or_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(InvalidRequest) as error:
        SigV4()
    assert error.value.field == "region"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with pytest.raises(Forbidden):
        SigV4()(Request("GET", "https://api.example.com/v1/locks", {}, None))


def test_missing_extra_is_named(run_python: RunPython) -> None:
    code = """
        import sys
        sys.modules["botocore.auth"] = None
        try:
            import leasehold.aws
        except ImportError as error:
            print(error)
        """
    assert finished(run_python(code)) == "leasehold.aws needs botocore: pip install 'leasehold[aws]'\n"
