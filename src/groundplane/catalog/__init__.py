"""Facts about chips, servers, fabrics, storage and models, each with its source."""

from groundplane.catalog.presets import cluster_sizes
from groundplane.catalog.resolve import (
    catalog_with_file,
    load_cluster,
    model_entry,
    model_names,
    resolve_chip,
    resolve_cluster,
    resolve_entry,
    resolve_fabric,
    resolve_llm,
    resolve_server,
    resolve_storage,
)
from groundplane.catalog.store import Catalog

__all__ = [
    "Catalog",
    "catalog_with_file",
    "cluster_sizes",
    "load_cluster",
    "model_entry",
    "model_names",
    "resolve_chip",
    "resolve_cluster",
    "resolve_entry",
    "resolve_fabric",
    "resolve_llm",
    "resolve_server",
    "resolve_storage",
]
