"""The HTTP API of the control plane as one ASGI application, with its OpenAPI document at /schema."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import Struct

from groundplane import __version__
from groundplane.platform.engines.contract import Engine
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.http import EXCEPTION_HANDLERS, authenticate, settle
from groundplane.platform.runtime.identity import KeyRing
from groundplane.platform.runtime.job_desk import JobDesk
from groundplane.platform.runtime.routes import HANDLERS, health
from groundplane.platform.runtime.service_desk import ServiceDesk

MAX_BODY_BYTES: Final = 1 << 20


class Platform(Struct, frozen=True):
    """What the routes work with; also in `app.state` under these names, for the routers of other rooms."""

    state_dir: Path
    database: Database
    driver: Driver
    engine: Engine
    key_ring: KeyRing
    jobs: JobDesk
    services: ServiceDesk
    started_ns: int


def create_app(platform: Platform, routers: list[Router]) -> Litestar:
    """The ASGI application.

    Args:
        platform: what the routes work with.
        routers: routes of other rooms; they find the parts of `platform` in `app.state`.
    """
    return Litestar(
        route_handlers=[
            health,
            Router("/api", route_handlers=HANDLERS, guards=[authenticate], before_request=settle),
            *routers,
        ],
        state=State({name: getattr(platform, name) for name in Platform.__struct_fields__}),
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=OpenAPIConfig(
            title="Groundplane",
            version=__version__,
            description="Jobs, services and keys of one Groundplane platform.",
            path="/schema",
            render_plugins=[JsonRenderPlugin(path=("/", "/openapi.json"))],
            components=Components(
                security_schemes={"key": SecurityScheme(type="http", scheme="bearer", bearer_format="gp-...")}
            ),
            security=[{"key": []}],
        ),
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        include_in_schema=True,
    )
