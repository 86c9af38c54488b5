"""AWS: requests signed for an API with IAM authorization, and direct invocations of the function.

Needs the extra `leasehold[aws]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

try:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.session import get_session
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "leasehold.aws needs botocore: pip install 'leasehold[aws]'", name=error.name
    ) from error

from ._messages import Answer, Call, Request, parsed
from .errors import Forbidden, InvalidRequest

_ACTIONS = {
    "/v1/acquire": "acquire",
    "/v1/heartbeat": "heartbeat",
    "/v1/release": "release",
    "/v1/break": "break",
    "/v1/lock": "get",
}
"""The operations that a direct invocation carries out, by their path."""


class SigV4:
    """`Client(url, auth=SigV4())`: AWS Signature Version 4.

    `region` and `credentials` come from the environment, the profile, or the role of the function or
    instance, unless given; temporary credentials are renewed. `service`, unless given, is `lambda` for a
    function URL and `execute-api` for other hosts. Raises `InvalidRequest` where no region is configured.
    """

    def __init__(
        self,
        region: str | None = None,
        *,
        service: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        session = get_session()
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
        SigV4Auth(self._credentials.get_frozen_credentials(), service, self.region).add_auth(signed)
        return dict(signed.headers.items())


def _service_at(url: str) -> str:
    """A function URL is Lambda's. All others are API Gateway's, custom domains included."""
    host = urlsplit(url).hostname or ""
    return "lambda" if ".lambda-url." in host and host.endswith(".on.aws") else "execute-api"


class Function:
    """`Client(Function("leasehold-invoke"))`: invokes the function directly, without an API before it.

    `name` is the function's name or ARN; `qualifier` a version or an alias. It serves locks one by one:
    listings and transactions need the HTTP API. The caller needs `lambda:InvokeFunction`. `region` and
    `credentials` are found as by `SigV4`; `endpoint_url` overrides AWS's own.
    """

    def __init__(
        self,
        name: str,
        *,
        qualifier: str | None = None,
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
        self._invoke = f"{self.url}/2015-03-31/functions/{quote(name, safe='')}/invocations"
        if qualifier is not None:
            self._invoke += f"?Qualifier={quote(qualifier, safe='')}"

    def make(self, call: Call) -> Request:
        """The signed invocation of a call. Raises `InvalidRequest` where it needs the HTTP API."""
        action = _ACTIONS.get(call.path)
        if action is None:
            raise InvalidRequest(f"{call.path} needs the HTTP API; the function serves locks one by one")
        body = json.dumps({"action": action, **call.members}, allow_nan=False).encode()
        headers = {"Content-Type": "application/json", "X-Amz-Invocation-Type": "RequestResponse"}
        request = Request("POST", self._invoke, headers, body)
        return Request("POST", self._invoke, self._sign(request), body)

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        """The function's answer. A refusal is an error whose message is the problem document."""
        document = parsed(content)
        told = document if isinstance(document, dict) else {}
        if status != 200:  # Lambda's own
            return Answer(status, headers, {"detail": told.get("Message") or told.get("message")})
        if "X-Amz-Function-Error" not in headers:
            return Answer(200, headers, document)
        message = told.get("errorMessage")
        problem = parsed(message) if isinstance(message, str) else None
        if isinstance(problem, dict) and isinstance(problem.get("status"), int):
            return Answer(problem["status"], headers, problem)
        # The function failed, or ran out of time, and may have carried out the request.
        return Answer(502, headers, {"detail": f"the function failed: {message}"})
