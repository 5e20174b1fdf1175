"""The examples of the documentation run, and its lists match the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pymysql
import pytest
import real_servers

from holdfast.events import EVENTS
from holdfast.stores.sql.address import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = {
    page.relative_to(ROOT).as_posix(): re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for page in PAGES
}


FILES = {
    page.relative_to(ROOT).as_posix(): re.findall(
        r"^```python title=\"([a-z_]+\.py)\"\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    for page in PAGES
}


def on_mariadb():
    """What replaces the address of the examples for MySQL: a database of its own."""
    given = parse(real_servers.shared("mariadb").url).dialect._options
    with pymysql.connect(**given, autocommit=True) as db, db.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE shop")
    user = {**given, "database": "shop"}
    return {
        "mysql://app:secret@localhost:3306/app": real_servers.shared("mariadb").url.rpartition("/")[0] + "/shop",
        'host="localhost", port=3306, user="app", password="secret", database="app"': f"**{user!r}",
    }


SERVERS = {"docs/stores/mysql.md": on_mariadb}
"""Pages whose programs need a server, and what replaces its address in them."""


def ran(page, folder, *arguments):
    """Run the code in a separate process and a folder with the page's files. Returns what it printed."""
    addresses = SERVERS[page]() if page in SERVERS else {}
    for name, text in FILES[page]:
        for shown, real in addresses.items():
            assert shown in text
            text = text.replace(shown, real)  # noqa: PLW2901  (one after the other)
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{page}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [page for page, examples in EXAMPLES.items() if examples])
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path):
    """In a separate process and a folder with the page's files; absolute paths are moved into that folder."""
    code = "\n\n".join(EXAMPLES[page]).replace("sqlite:////var/lib/app/", f"sqlite:///{tmp_path}/")
    compile(code, page, "exec")
    ran(page, tmp_path, "-c", code)


PROGRAMS = [
    pytest.param(page, name, id=f"{page}:{name}")
    for page, files in FILES.items()
    for name, text in files
    if text.rstrip().endswith("asyncio.run(main())")
]


@pytest.mark.parametrize(("page", "name"), PROGRAMS)
def test_a_program_of_a_page_runs_and_prints_what_the_page_says(page, name, tmp_path):
    """The comment after a print is what it prints; up to the dots, if there are any."""
    printed = ran(page, tmp_path, name)
    for texts in re.findall(r"^ *print\(.*\) +# (.*)$", dict(FILES[page])[name], re.MULTILINE):
        assert texts.partition(" ...")[0] in printed


SHOWN = [
    pytest.param(page.relative_to(ROOT).as_posix(), name, output, id=f"{page.relative_to(ROOT).as_posix()}:{name}")
    for page in PAGES
    for name, output in re.findall(
        r"^```console\n\$ (?:\S*/)?python ([a-z_]+\.py)\n(.+?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
]


def test_the_readme_shows_what_its_first_program_prints():
    assert "README.md:first.py" in [case.id for case in SHOWN]


@pytest.mark.parametrize(("page", "name", "output"), SHOWN)
def test_a_page_shows_exactly_what_its_program_prints(page, name, output, tmp_path):
    assert ran(page, tmp_path, name) == output


def test_the_links_of_the_readme_have_the_titles_of_their_pages():
    for text, path in re.findall(r"\[([^\]]+)\]\(((?:docs/)?[\w/-]+\.md)\)", (ROOT / "README.md").read_text()):
        title = re.search(r"^# (.*)$", (ROOT / path).read_text(), re.MULTILINE)[1]
        assert text == title, path


def test_the_workflow_of_the_readme_continues_after_a_kill(tmp_path):
    (tmp_path / "trip.py").write_text(dict(FILES["README.md"])["trip.py"])
    claims = []
    for kill_at in ("booking a hotel", None):
        claims.append([])
        with subprocess.Popen([sys.executable, "trip.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                claims[-1].append(line.strip())
                if claims[-1][-1] == kill_at:
                    process.kill()
    assert claims == [
        ["booking a flight", "booking a hotel"],
        ["booking a hotel", "booking a car", "['flight booked', 'hotel booked', 'car booked']"],
    ]


def test_the_table_of_events_equals_the_one_in_the_code():
    rows = [
        f"| `{name}` | {kind.level} | {kind.when} | {', '.join(f'`{field}`' for field in kind.fields)} |"
        for name, kind in EVENTS.items()
    ]
    shown = [line for line in (ROOT / "docs/events.md").read_text().splitlines() if line.startswith("| `")]
    assert shown == rows


def test_contributing_lists_exactly_the_campaigns_and_long_tests_of_the_makefile():
    words = set(re.findall(r"`make ((?:chaos|test)-[a-z_]+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    makefile = (ROOT / "Makefile").read_text()
    campaigns = re.search(r"^CAMPAIGNS := (.*)$", makefile, re.MULTILINE)[1].split()
    targets = {f"chaos-{name}" for name in campaigns} | set(re.findall(r"^(test-[a-z]+):", makefile, re.MULTILINE))
    assert words == targets
