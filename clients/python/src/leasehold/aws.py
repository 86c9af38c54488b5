"""Signs requests for an API with IAM authorization. Needs the extra `leasehold[aws]`."""

from __future__ import annotations

from collections.abc import Mapping

try:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.session import get_session
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "leasehold.aws needs botocore: pip install 'leasehold[aws]'", name=error.name
    ) from error

from . import Request
from .errors import Forbidden, InvalidRequest


class SigV4:
    """`Client(url, auth=SigV4())`: AWS Signature Version 4.

    `region` and `credentials` come from the environment, the profile, or the role of the function or
    instance, unless given; temporary credentials are renewed. `service` is `execute-api` for API Gateway,
    `lambda` for a function URL. Raises `InvalidRequest` where no region is configured.
    """

    def __init__(
        self,
        region: str | None = None,
        *,
        service: str = "execute-api",
        credentials: Credentials | None = None,
    ) -> None:
        session = get_session()
        region = region or session.get_config_variable("region")
        if not region:
            raise InvalidRequest("no AWS region is configured", "region")
        self._region = region
        self._service = service
        self._credentials = credentials or session.get_credentials()

    def __call__(self, request: Request) -> Mapping[str, str]:
        """The headers of the signed request. Raises `Forbidden` where there are no credentials."""
        if self._credentials is None:
            raise Forbidden("no AWS credentials are configured")
        signed = AWSRequest(request.method, request.url, headers=dict(request.headers), data=request.body)
        SigV4Auth(self._credentials.get_frozen_credentials(), self._service, self._region).add_auth(signed)
        return dict(signed.headers.items())
