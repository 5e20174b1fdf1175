"""`HOLDFAST_TEST_MYSQL_URL` lets the tests of relational stores run on a server that somebody else has started."""

from __future__ import annotations

import os
import subprocess
import sys

import real_servers

FEW = (
    "tests/stores/test_sql.py::test_a_command_that_changes_nothing_takes_one_round_trip",
    "tests/stores/test_sql_swap.py::test_a_decision_that_is_half_a_minute_old_is_made_again",
)


def test_the_tests_of_relational_stores_run_on_the_server_of_the_variable(request):
    """MariaDB in place of MySQL: both have the same driver."""
    url = real_servers.shared("mariadb").url.replace("mariadb://", "mysql://")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *FEW, "-k", "mysql"],
        cwd=request.config.rootpath,
        env={**os.environ, "HOLDFAST_TEST_MYSQL_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    for test in FEW:
        assert f"PASSED {test}[mysql]" in ran.stdout
