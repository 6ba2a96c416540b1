"""Puts a built documentation into a site of versions: ``python -m deploy.docs_site BUILT SITE VERSION``.

``SITE/<major>.<minor>/`` holds the pages, ``SITE/versions.json`` lists the versions, newest first, in the format
of mike, which the chooser on the pages reads, and ``SITE/index.html`` leads to the newest. Patch releases replace the
pages of their minor version.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

__all__ = ["add_version"]

_REDIRECT: Final = """<!doctype html>
<html lang="en">
<title>weir</title>
<meta http-equiv="refresh" content="0; url={folder}/index.html">
<a href="{folder}/index.html">weir {title}</a>
</html>
"""


def add_version(built: Path, site: Path, version: Version) -> None:
    """Copy the pages, and list the version; an older patch of a minor version raises `ValueError`."""
    folder = f"{version.major}.{version.minor}"
    index = site / "versions.json"
    listed: list[dict[str, Any]] = json.loads(index.read_text()) if index.exists() else []
    titles = {each["version"]: Version(each["title"]) for each in listed}
    if titles.get(folder, version) > version:
        raise ValueError(f"the site has {titles[folder]} already, which is newer than {version}")
    titles[folder] = version
    shutil.rmtree(site / folder, ignore_errors=True)
    shutil.copytree(built, site / folder)
    newest, *older = sorted(titles, key=titles.__getitem__, reverse=True)
    entries = [{"version": name, "title": str(titles[name]), "aliases": []} for name in (newest, *older)]
    entries[0]["aliases"] = ["latest"]
    index.write_text(json.dumps(entries, indent=1) + "\n")
    (site / "index.html").write_text(_REDIRECT.format(folder=newest, title=titles[newest]))


if __name__ == "__main__":
    add_version(Path(sys.argv[1]), Path(sys.argv[2]), Version(sys.argv[3]))
