"""TLS by the usual options of each driver: a certificate that can be trusted is accepted, and no other."""

from __future__ import annotations

import pytest
import real_servers
from tls import make_certificates, tunnel

from holdfast import Client
from holdfast.errors import StoreError, StoreUnusable
from holdfast.stores import open_store


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A certificate authority that has signed nothing that is used here."""
    return make_certificates(tmp_path_factory.mktemp("strange"))


def is_refused(url, kind=StoreError):
    store = open_store(url, namespace="default")
    try:
        with pytest.raises(kind) as refused:
            store.connect("commands")
    finally:
        store.close()
    assert not refused.value.ambiguous
    return str(refused.value)


def works(url):
    with Client(url) as hf, hf.lock("k", ttl=30):
        return True


def test_mariadb_by_the_options_of_pymysql(certificates, strange):
    settings = {"ssl-cert": str(certificates / "server.crt"), "ssl-key": str(certificates / "server.key")}
    with real_servers.server("mariadb", settings={**settings, "require-secure-transport": "ON"}) as server:
        place = server.url.replace("127.0.0.1", "localhost")
        trusted = f"{place}?ssl_ca={certificates / 'ca.crt'}&ssl_verify_cert=true&ssl_verify_identity=true"
        assert works(trusted)
        assert "TLS failed" in is_refused(trusted.replace(str(certificates), str(strange)), StoreUnusable)


def test_mongodb_by_the_options_of_pymongo(certificates, strange):
    with real_servers.server("mongodb") as server, tunnel(certificates, server.port) as port:
        options = "directConnection=true&tls=true&serverSelectionTimeoutMS=2000"
        trusted = f"mongodb://localhost:{port}/app?{options}&tlsCAFile={certificates / 'ca.crt'}"
        assert works(trusted)
        assert "certificate" in is_refused(trusted.replace(str(certificates), str(strange)))


def test_dynamodb_by_the_ca_bundle_of_the_environment(certificates, strange, monkeypatch):
    with real_servers.server("dynamodb") as server, tunnel(certificates, server.port) as port:
        url = f"dynamodb://any:any@us-east-1/locks?endpoint=https://localhost:{port}&create=true"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "ca.crt"))
        assert works(url)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(strange / "ca.crt"))
        assert "no certificate that can be trusted" in is_refused(url)
