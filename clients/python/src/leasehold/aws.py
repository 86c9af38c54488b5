"""AWS: requests signed for an API with IAM authorization, and direct invocations of the function.

Needs the extra `leasehold[aws]`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

try:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.session import get_session
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("leasehold.aws needs botocore: pip install 'leasehold[aws]'", name=error.name) from error

from ._messages import Answer, Call, Request, content_of, parsed
from .errors import Forbidden, InvalidRequest

_ACTIONS = {
    "/v1/acquire": "acquire",
    "/v1/acquire-all": "acquire-all",
    "/v1/heartbeat": "heartbeat",
    "/v1/release": "release",
    "/v1/want": "want",
    "/v1/break": "break",
    "/v1/occurrence": "occurrence",
    "/v1/lock": "get",
    "/v1/semaphore": "semaphore-get",
    "/v1/semaphore/acquire": "semaphore-acquire",
    "/v1/semaphore/enqueue": "semaphore-enqueue",
    "/v1/semaphore/heartbeat": "semaphore-heartbeat",
    "/v1/semaphore/release": "semaphore-release",
    "/v1/semaphore/break": "semaphore-break",
    "/v1/semaphore/capacity": "semaphore-capacity",
}
"""The actions of the function for locks and semaphores, by the path of their operation."""

_TRANSACTIONS = {
    "/v1/transactions/begin": "begin",
    "/v1/transactions/add": "add",
    "/v1/transactions/commit": "commit",
    "/v1/transactions/rollback": "rollback",
    "/v1/transaction": "get-transaction",
    "/v1/items/get": "get-items",
    "/v1/items/list": "list-items",
}

_TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers that a client context carries. Baggage is left out: the size of a client context is bounded."""


class SigV4:
    """`Client(url, auth=SigV4())`: AWS Signature Version 4.

    `region` and `credentials` come from the environment, the profile, or the role of the function or
    instance, unless given; temporary credentials are renewed. A host name of AWS tells its own region, so that one
    signer serves endpoints in several. `service`, unless given, is `lambda` for a function URL and `execute-api` for
    other hosts. Raises `InvalidRequest` where no region is configured.
    """

    def __init__(
        self,
        region: str | None = None,
        *,
        service: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        session = get_session()
        self._is_given = region is not None
        region = region or session.get_config_variable("region")
        if not region:
            raise InvalidRequest("no AWS region is configured", "region")
        self.region = region
        self._service = service
        self._credentials = credentials or session.get_credentials()

    def __call__(self, request: Request) -> Mapping[str, str]:
        """Returns the headers of the signed request. Raises `Forbidden` if there are no credentials."""
        if self._credentials is None:
            raise Forbidden("no AWS credentials are configured")
        signed = AWSRequest(request.method, request.url, headers=dict(request.headers), data=request.body)
        service = self._service or _service_at(request.url)
        region = self.region if self._is_given else _region_of(request.url) or self.region
        SigV4Auth(self._credentials.get_frozen_credentials(), service, region).add_auth(signed)
        return dict(signed.headers.items())


def _service_at(url: str) -> str:
    """A function URL is Lambda's. All others are API Gateway's, custom domains included."""
    host = urlsplit(url).hostname or ""
    return "lambda" if ".lambda-url." in host and host.endswith(".on.aws") else "execute-api"


def _region_of(url: str) -> str | None:
    """The region in a host name such as `abc123.execute-api.eu-central-1.amazonaws.com`, or of a function URL."""
    found = re.search(
        r"\.(?:execute-api\.([^.]+)\.amazonaws\.com(?:\.cn)?|lambda-url\.([^.]+)\.on\.aws)$",
        urlsplit(url).hostname or "",
    )
    return found and (found[1] or found[2])


class Function:
    """`Client(Function("leasehold-invoke"))`: invokes the functions directly, without an API before them.

    `name` is the name or the ARN of the function for locks and semaphores; `qualifier` a version or an alias of
    it. `transact_function` names the one for transactions and items: without it, these are refused. Listings and
    watches need the HTTP API; a waiter polls. The caller needs `lambda:InvokeFunction`. `region` and `credentials`
    are found as by `SigV4`; `endpoint_url` overrides AWS's own.
    """

    def __init__(
        self,
        name: str,
        *,
        qualifier: str | None = None,
        transact_function: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        self._sign = SigV4(region, service="lambda", credentials=credentials)
        if endpoint_url is None:
            client = get_session().create_client("lambda", region_name=self._sign.region)
            endpoint_url = client.meta.endpoint_url
        self.url = endpoint_url.rstrip("/")
        self.calls_out = True
        self._name = name
        self._qualifier = qualifier
        self._transact_function = transact_function

    def make(self, call: Call) -> Request:
        """The signed invocation of a call. Raises `InvalidRequest` where no function is named for it."""
        url, action = self._invocation(call.path)
        body = content_of({"action": action, **call.members})
        headers = {"Content-Type": "application/json", "X-Amz-Invocation-Type": "RequestResponse"}
        trace = {name: call.headers[name] for name in _TRACE_HEADERS if name in call.headers}
        if trace:
            headers["X-Amz-Client-Context"] = b64encode(json.dumps({"custom": trace}).encode()).decode()
        return Request("POST", url, self._sign(Request("POST", url, headers, body)), body)

    def _invocation(self, path: str) -> tuple[str, str]:
        """The URL that invokes the function for this path, and the action there."""
        if path in _ACTIONS:
            qualifier = "" if self._qualifier is None else f"?Qualifier={quote(self._qualifier, safe='')}"
            return self._url_of(self._name) + qualifier, _ACTIONS[path]
        if path in _TRANSACTIONS:
            if self._transact_function is None:
                raise InvalidRequest("must be named, for transactions and items", "transact_function")
            return self._url_of(self._transact_function), _TRANSACTIONS[path]
        raise InvalidRequest(f"there is no direct invocation of {path}: use the URL of the HTTP API", "base_url")

    def _url_of(self, function: str) -> str:
        return f"{self.url}/2015-03-31/functions/{quote(function, safe='')}/invocations"

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        """The function's answer. A refusal is an error whose message is the problem document."""
        document = parsed(content)
        told = document if isinstance(document, dict) else {}
        if status != 200:  # Lambda's own
            reason = told.get("Message") or told.get("message") or f"Lambda answered with status {status}"
            detail = f"the function cannot be invoked: {reason}"
            return Answer(status, headers, {"detail": detail, "type": "lambda"})
        if "X-Amz-Function-Error" not in headers:
            return Answer(200, headers, document)
        message = told.get("errorMessage")
        problem = parsed(message) if isinstance(message, str) else None
        if isinstance(problem, dict) and isinstance(problem.get("status"), int):
            return Answer(problem["status"], headers, problem)
        # The function failed, or ran out of time, and may have carried out the request.
        return Answer(502, headers, {"detail": f"the function failed: {message}"})
