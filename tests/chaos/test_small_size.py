"""The campaigns, at a smaller size than in `make chaos`: the same programs, with fewer operations and faults.

| campaign | here                                                       | at full size                           |
|---------|-------------------------------------------------------------|----------------------------------------|
| counter | 4 processes, 100 increments, 2 kills, 3 pauses              | 8, 2,000, more than 30, 44             |
|         | 3, 40, 2, 2 on MariaDB and MongoDB                          | 8, 1,600, 18, 18 on those and DynamoDB |
| semaphore | 8 processes, 200 entries, 2 kills, 5 pauses                 | 10, 3,000, more than 24, 50            |
| clock   | 60 increments, 3 steps of an hour                           | 600, 14                                |
| waiters | each of 6 cases once                                        | 10 times                               |
| lost_replies | 16 callers; 12 takes each, on each store                    | 72; 90                                 |
| blocked_loops | 4 blocked loops; 400 attempts to take a lock                | 20; 6,000                              |
| state   | 50 tasks in 2 processes, 400 additions, 20 stale writers    | 100 in 4, 2,000, 500                   |
| leader  | 3 processes, 6 seconds, 3 kills and pauses                  | 5, 60, 27                              |
| network | 3 processes, 7 faults of a network, 15 lost replies         | 4, 35, 75                              |
| outages | 4 processes, 5 faults of a server                           | 4, 30                                  |
| skew    | 6 processes, 24 grants, 3 deaths                            | 6, 240, 3                              |
| stuck_row | 600 leases, a row held once                                 | 3,000, 5 times                         |
| queue_load | 8 waiting for 6 seconds, 240 turns                          | 20, 12, 1,000                          |
| load    | 60 tasks, holders and readers in 3 processes, 60 runs       | 3,000, 1,000 in 40, 10,000             |
| crashes | a kill at each of 58 points, when it is reached first       | the first, second and third time       |
| engines | 3 processes, 80 runs, 4 kills and pauses, lost answers      | 4, 2,000, 60                           |
| recovery | 200 runs of an engine that is killed                       | 1,000                                  |
| takeover | one pause                                                  | 10                                     |
| heartbeats | a step that goes on for 3 timeouts, one that hangs      | 10 times                               |
| limits  | 36 starts by 4 processes, 2 kills                           | 200, 12                                |
| run_locks | 14 runs on a mutex and a semaphore, 2 kills               | 100, 15                                |
| deploy  | 8 runs for each bad deploy, one or two deploys on a server  | 100 for each, and 60 s                 |
| generations | 8 generations of 8 signals, 40 messages, 4 faults       | 1,000 of 100, 5,000, 120               |
| streams | 9 readers of 3 runs with 6 steps of 60 items, 4 faults      | 20 of 5, 20 of 200, 40                 |
| answers | 40 updates, 30 approvals, 2 faults                          | 1,000, 1,000, 30                       |

`network` to `queue_load` run here on PostgreSQL and Valkey, and at full size on Redis as well; `stuck_row` is about
PostgreSQL alone. `waiters`, `turnover` and `load`, and all after it, run on SQLite too; `heartbeats`, `deploy`,
`generations`, `streams` and `answers` also on MariaDB.

Campaigns that drive runs or take long are in test_small_size_runs.py, so that the two files can run in parallel.
"""

from __future__ import annotations

import pytest
import real_servers
from smaller_size import check_campaign

HERE = ("counter", "semaphore", "clock", "lost_replies", "blocked_loops", "state", "leader")
SERVERS = {
    "network": ("postgres", "valkey"),
    "outages": ("postgres", "valkey"),
    "skew": ("postgres", "valkey"),
    "stuck_row": ("postgres",),
    "queue_load": ("postgres", "valkey"),
}
"""The campaigns on real servers, and the servers on which they run at this size."""


@pytest.mark.parametrize("name", [*HERE, *SERVERS])
def test_the_campaign_passes_at_its_small_size(name):
    check_campaign(name, SERVERS.get(name, ()))


@pytest.mark.parametrize("kind", ["mariadb", "mongodb"])
def test_the_counter_passes_on_stores_that_compare_and_swap(kind):
    real_servers.shared(kind)  # skips where the server is not installed
    check_campaign("counter", (kind,), ("--store", kind))
