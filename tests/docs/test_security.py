"""What docs/security.md says to try on one machine is tried as it is written."""

import re
import shutil
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.config import load_settings
from weir.contracts import Store
from weir.serving.client import RetrievalClient, RetrievalError

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates with")
def test_what_the_page_says_to_try_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands, script, settings_file, *_ = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.M)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-ec", re.sub(r"^\$ ", "", commands, flags=re.M)], check=True, capture_output=True)
    exec(compile(script, str(PAGE), "exec"), {})  # noqa: S102 - our own page
    Path("weir.yaml").write_text(settings_file)
    settings = load_settings(tmp_path / "weir.yaml")
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    guarded = {"tls": settings.serving.tls, "auth": settings.serving.auth, "http_port": 0}
    with ServerProcess(store, client=settings.client, **guarded) as server:
        server.serving("v1")
        with RetrievalClient(server.target, config=settings.client) as client:
            assert client.info().bundle_version == "v1"
        stranger = settings.client.model_copy(update={"token_file": None})
        with RetrievalClient(server.target, config=stranger) as client, pytest.raises(RetrievalError) as refusal:
            client.info()
        assert refusal.value.reason == "TOKEN_MISSING"
        url = "https://" + server.said(r"HTTPS on (\S+),").group(1) + "/v1/info"
        headers = {"Authorization": f"Bearer {Path('keys/token').read_text()}"}
        context = ssl.create_default_context(cafile="keys/ca.crt")
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:  # noqa: S310 - https
            assert answer.status == 200
