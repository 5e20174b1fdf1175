"""The public suite, on every store of `providers.py`."""

from __future__ import annotations

import os

from providers import PROVIDERS, Provider

from holdfast.testing import StoreConformance


def suite_for(provider: Provider) -> type:
    """A class of tests for this store, as another package would write it."""

    class Conformance(StoreConformance):
        processes, notices = provider.processes, provider.notices
        histories = StoreConformance.histories // (1 if "HOLDFAST_HISTORIES" in os.environ else provider.share)

        def url(self, folder):
            return provider.url(folder)

        def dump(self, url, namespace):
            return provider.dump(url, namespace)

        def plant(self, url, namespace, key, text):
            if provider.plant is None:
                return False
            provider.plant(url, namespace, key, text)
            return True

        def plant_record(self, url, namespace, kind, key, text):
            provider.plant_record(url, namespace, kind, key, text)
            return True

    Conformance.__name__ = Conformance.__qualname__ = f"Test{provider.name.capitalize()}"
    return Conformance


globals().update({suite.__name__: suite for suite in map(suite_for, PROVIDERS.values())})
