"""OpenAI-shaped errors: what the gateway itself says when it refuses or an upstream fails.

Knows of no transport. Messages never contain a key or a prompt.
"""

from __future__ import annotations

import msgspec

from groundplane.spec.errors import GroundplaneError


class ApiError(GroundplaneError):
    """One refusal or failure, as the client will read it.

    Args:
        status: HTTP status.
        message: what is wrong and what would be right, as one sentence.
        kind: OpenAI's `error.type` ("invalid_request_error", "rate_limit_error", "server_error").
        code: OpenAI's `error.code`, stable, for programs.
        param: the field of the request that is at fault, or None.
        retry_after_s: seconds for the Retry-After header, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON body, `{"error": {"message", "type", "param", "code"}}`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same as a server-sent event, for a stream that has already begun."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beside content type and length."""
        headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


def no_key() -> ApiError:
    """No `Authorization: Bearer KEY` header."""
    return ApiError(
        401, "An API key is needed: send the header 'Authorization: Bearer KEY'.", code="missing_api_key"
    )


def wrong_key() -> ApiError:
    """A key that is unknown, expired or revoked; which of them is not said."""
    return ApiError(
        401, "This API key is not valid: it is unknown, expired or revoked.", code="invalid_api_key"
    )


def may_not(role: str) -> ApiError:
    """A key that may look and not spend."""
    return ApiError(
        403,
        f"This API key's role is '{role}'; to ask a model it must be member or admin.",
        code="not_allowed",
    )


def unknown_model(name: str, nearest: str | None) -> ApiError:
    """A model that no service serves."""
    hint = f" Did you mean '{nearest}'?" if nearest else ""
    message = f"The model '{name[:80]}' does not exist.{hint}"
    return ApiError(404, message, code="model_not_found", param="model")


def unknown_path(path: str) -> ApiError:
    """A path that the gateway does not serve."""
    return ApiError(404, f"There is nothing at '{path[:80]}'.", code="unknown_url")


def wrong_method(method: str, path: str) -> ApiError:
    """A known path, called by another method."""
    return ApiError(405, f"'{path[:80]}' does not answer to {method[:10]}.", code="method_not_allowed")


def bad_body(message: str, param: str | None = None) -> ApiError:
    """A body that is no JSON object, or one without what the gateway itself needs."""
    return ApiError(400, message, code="invalid_json" if param is None else "invalid_value", param=param)


def too_large(limit_bytes: int) -> ApiError:
    """A body beyond the limit."""
    return ApiError(413, f"The request body is larger than {limit_bytes} bytes.", code="request_too_large")


def too_slow(limit_s: float) -> ApiError:
    """A body that did not arrive in time."""
    return ApiError(408, f"The request body did not arrive within {limit_s:g} s.", code="request_timeout")


def overloaded(what: str, limit: int) -> ApiError:
    """A bounded number of requests in flight is reached."""
    message = f"Too many requests in flight {what} (limit {limit}). Try again shortly."
    return ApiError(429, message, kind="rate_limit_error", code="overloaded", retry_after_s=1)


def no_replica(name: str) -> ApiError:
    """The model is served, and no replica is ready now."""
    message = f"No replica of '{name}' is ready. Try again shortly."
    return ApiError(503, message, kind="server_error", code="no_ready_replica", retry_after_s=2)


def not_ready(what: str) -> ApiError:
    """The gateway cannot take requests: nothing known yet, or nothing can be metered."""
    return ApiError(503, what, kind="server_error", code="gateway_unavailable", retry_after_s=1)


def upstream_failed(detail: str) -> ApiError:
    """The model server could not be reached, broke off, or answered with something that is not HTTP."""
    return ApiError(502, f"The model server failed: {detail}.", kind="server_error", code="upstream_error")


def upstream_timeout(limit_s: float) -> ApiError:
    """The model server was silent for too long."""
    message = f"The model server was silent for {limit_s:g} s."
    return ApiError(504, message, kind="server_error", code="upstream_timeout")
