"""The site is built strictly, and what its builder does not check is checked here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def paths(entries):
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            yield from paths(target) if isinstance(target, list) else [target]


@pytest.fixture(scope="module")
def navigation():
    return list(paths(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """As `make docs` builds it, in a temporary folder."""
    project = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "mkdocs.yml", project)
    shutil.copytree(ROOT / "docs", project / "docs")
    for name in ("src", "scripts"):
        (project / name).symlink_to(ROOT / name)
    for command in (["-m", "zensical", "build", "--strict"], [str(ROOT / "scripts/llms_txt.py"), "site"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=project, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return project / "site"


def test_every_page_is_in_the_navigation_once_and_every_entry_is_a_page(navigation):
    assert sorted(navigation) == sorted(PAGES)


def test_every_image_of_a_page_exists():
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text()
        for target in re.findall(r"!\[[^\]]*\]\(([^)#]+)\)", text):
            assert (ROOT / "docs" / page).parent.joinpath(target).is_file(), f"{page}: {target}"


def test_the_site_is_built_strictly_with_every_page(site):
    built = {page.relative_to(site).as_posix() for page in site.rglob("index.html")}
    assert built >= {re.sub(r"(^|/)index/index.html$", r"\1index.html", f"{page[:-3]}/index.html") for page in PAGES}


def test_llms_txt_names_every_page_and_the_full_text_holds_every_page(site):
    index, full = (site / "llms.txt").read_text(), (site / "llms-full.txt").read_text()
    assert index.startswith("# Holdfast\n\n> ")
    lines = dict(re.findall(r"^- \[[^\]]+\]\((\S+)\): (\S.*)$", index, re.MULTILINE))
    assert lines.keys() == PAGES
    assert all((site / page).is_file() for page in lines)
    assert set(re.findall(r"^<!-- (\S+\.md) -->$", full, re.MULTILINE)) == PAGES
    assert "\n::: " not in full, "a directive was not written out"


def test_no_page_loads_anything_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s>]*", text)
        loaded += [link for link in re.findall(r"<link\b[^>]*>", text) if "//" in link and "canonical" not in link]
        assert not loaded, f"{page.relative_to(site)}: {loaded}"


def test_the_api_reference_shows_docstrings_with_their_examples_as_code(site):
    page = (site / "reference/client/index.html").read_text()
    assert "AsyncClient" in page
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "<blockquote>" not in page
