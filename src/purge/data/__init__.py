"""Data of any form: samples, images, splits, named data sets and the files they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.data.accept import accepted
    from purge.data.cache import KINDS as CACHE_KINDS
    from purge.data.cache import Kind as CacheKind
    from purge.data.cache import cache_folder, no_cache
    from purge.data.cache import clear as clear_cache
    from purge.data.cache import entries as cache_entries
    from purge.data.cache import user_folder as user_cache
    from purge.data.catalog import DATASETS
    from purge.data.identity import fingerprints
    from purge.data.items import Adapt, Form, IdOf
    from purge.data.samples import Samples, relabelled
    from purge.data.sources import OPTIONS, DataSource, choose_data, option_name, option_type

__all__ = [
    "CACHE_KINDS", "DATASETS", "OPTIONS", "Adapt", "CacheKind", "DataSource", "Form", "IdOf", "Samples",
    "accepted", "cache_entries", "cache_folder", "choose_data", "clear_cache", "fingerprints", "no_cache",
    "option_name", "option_type", "relabelled", "user_cache",
]  # fmt: skip

__getattr__ = imported_on_use(
    __name__,
    {
        "Adapt": "data.items", "Form": "data.items", "IdOf": "data.items", "accepted": "data.accept",
        "CACHE_KINDS": "data.cache:KINDS", "CacheKind": "data.cache:Kind", "DATASETS": "data.catalog",
        "DataSource": "data.sources", "OPTIONS": "data.sources", "Samples": "data.samples",
        "cache_entries": "data.cache:entries", "cache_folder": "data.cache", "choose_data": "data.sources",
        "clear_cache": "data.cache:clear", "fingerprints": "data.identity", "no_cache": "data.cache",
        "option_name": "data.sources", "option_type": "data.sources", "relabelled": "data.samples",
        "user_cache": "data.cache:user_folder",
    },
)  # fmt: skip
