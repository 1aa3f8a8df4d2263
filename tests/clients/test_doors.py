"""Who is let in, and what two clients share."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from home import TIMEOUT, Home
from sdk import LEGACY, connect


def post(home: Home, headers: dict) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    request = urllib.request.Request(home.url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_only_the_token_opens_the_http_door(home: Home) -> None:
    home.serve()
    good = {"Authorization": f"Bearer {home.token}"}
    assert post(home, {}) == 401
    assert post(home, {"Authorization": "Bearer wrong"}) == 401
    assert post(home, {**good, "Host": "evil.example"}) == 403
    assert post(home, {**good, "Origin": "http://evil.example"}) == 403
    # With everything right it gets as far as the protocol, which misses the session.
    assert post(home, good) not in (401, 403)


@pytest.mark.anyio
async def test_the_sdk_is_refused_without_the_token(home: Home) -> None:
    home.serve()
    # Which exception differs between versions; the status code is tested above.
    let_in = False
    with pytest.raises(Exception, match=r"TaskGroup|401"):
        async with connect(home, "http", LEGACY, token="wrong"):
            let_in = True
    assert not let_in


@pytest.mark.anyio
async def test_two_clients_of_one_process_share_the_default_session(home: Home) -> None:
    async with connect(home, "stdio", LEGACY) as first, connect(home, "stdio", LEGACY) as second:
        await first.execute("shared = 'yes'")
        assert (await second.execute("shared"))["result"] == "'yes'"


@pytest.mark.anyio
async def test_a_session_outlives_its_client(home: Home) -> None:
    async with connect(home, "stdio", LEGACY) as client:
        await client.execute("kept = 1", target=(await client.call("open_session", name="long")).data["name"])
    async with connect(home, "stdio", LEGACY) as client:
        assert (await client.execute("kept", target="long"))["result"] == "1"
    assert home.run("exec", "-t", "long", "kept + 1").stdout == "2\n"


@pytest.mark.anyio
async def test_the_sdk_over_tls_until_the_token_is_rotated(home: Home) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate, key = str(home.path / "cert.pem"), str(home.path / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(["openssl", *kind, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    home.serve("--host", "0.0.0.0", "--tls-cert", certificate, "--tls-key", key)
    assert home.url.startswith("https://localhost:")
    trusted = ssl.create_default_context(cafile=certificate)
    rotated = ""
    # How the SDK tells that it was refused differs between versions.
    with pytest.raises(Exception, match=r"TaskGroup|401|terminated|Unauthorized|closed"):
        async with connect(home, "http", LEGACY, verify=trusted) as client:
            assert (await client.execute("6 * 7"))["result"] == "42"
            rotated = home.run("token", "rotate").stdout.strip()
            await client.execute("1")
    assert rotated == home.token
    async with connect(home, "http", LEGACY, verify=trusted) as client:
        assert (await client.execute("6 * 7"))["result"] == "42"
