"""The object stores that the tests of sinks run with: ``store`` is each of them, unless a test says which."""

from __future__ import annotations

import pytest

from tests.support.stores.azure import AzureServer
from tests.support.stores.google import GoogleServer
from tests.support.stores.s3 import S3Server

STORES = {
    "s3": pytest.param(S3Server, id="s3", marks=pytest.mark.parts("s3")),
    "azure": pytest.param(AzureServer, id="azure", marks=(pytest.mark.parts("azure"), pytest.mark.long)),
    "google": pytest.param(GoogleServer, id="google", marks=(pytest.mark.parts("google"), pytest.mark.long)),
}
"""What the emulators of Azure and Google Cloud Storage are made of takes minutes to get."""


def only(*names: str) -> pytest.MarkDecorator:
    """The test is for these stores: the emulator of another one does not do what it needs."""
    return pytest.mark.parametrize("store", [STORES[name] for name in names], indirect=True, scope="module")
