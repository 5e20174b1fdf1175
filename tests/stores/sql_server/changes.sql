-- a new run
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_guards WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND name IN (0x500818037f9830511b04ab2461032efa48edf57f56f2cf0ae92ae05d12f42321)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6e6577)) AS x WHERE x.n = 0 AND x.total = 0) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_guards SET stamp = 8 WHERE ns = 0x6e AND name IN (0x500818037f9830511b04ab2461032efa48edf57f56f2cf0ae92ae05d12f42321);
INSERT INTO holdfast_runs (ns, id, record, type, workflow, status, created_at, due_at, worker, start_key, ended_at, stamp) VALUES (0x6e, 0x6e6577, N'{"id":"new","type":"order","status":"queued","created_at":1,"key":"key","attributes":{"a":1},"places":[["all",""]],"priority":5,"arrival":4}', 0x6f72646572, 0x6f72646572, 0x717565756564, 1, NULL, NULL, 0x51e48d91dbef5fefaf450942c73b018eddd462f9337a185e9dcf9faee9621d3d, NULL, 8);
INSERT INTO holdfast_attributes (ns, term, created_at, run) VALUES (0x6e, 0x05a9c569a185ac60f5511f9760bc3f1ac046b20d18db2ad4d8fa86eda4f5b28e, 1, 0x6e6577);
INSERT INTO holdfast_places (ns, party, queued, grade, arrival, run, workflow, place) VALUES (0x6e, 0x500818037f9830511b04ab2461032efa48edf57f56f2cf0ae92ae05d12f42321, 1, -5, 4, 0x6e6577, 0x6f72646572, N'["all",""]');

-- a changed run
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_guards WITH (REPEATABLEREAD, ROWLOCK) WHERE ns = 0x6e AND name IN (0xed574aa71eb87d6cefff58373c93f1c2b7b4e46cc90cb6aacd8311279f9733da)) AS x WHERE x.n = 0 AND x.total = 0) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_guards WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (REPEATABLEREAD, ROWLOCK) WHERE ns = 0x6e AND id IN (0x72656164)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_locks WITH (REPEATABLEREAD, ROWLOCK) WHERE ns = 0x6e AND k IN (0x776f726b65722f77)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_runs SET record = N'{"id":"old","type":"order","status":"failed","created_at":1,"due_at":5,"worker":"w","ended_at":1000000,"result":"1"}', stamp = 8, ended_at = 1000000, status = 0x6661696c6564, due_at = 5, worker = 0x77 WHERE ns = 0x6e AND id = 0x6f6c64;

-- a run that leaves a queue
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_guards WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND name IN (0x500818037f9830511b04ab2461032efa48edf57f56f2cf0ae92ae05d12f42321)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x77616974696e67)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_guards SET stamp = 8 WHERE ns = 0x6e AND name IN (0x500818037f9830511b04ab2461032efa48edf57f56f2cf0ae92ae05d12f42321);
UPDATE holdfast_runs SET record = N'{"id":"waiting","type":"order","created_at":1}', stamp = 8, status = 0x70656e64696e67 WHERE ns = 0x6e AND id = 0x77616974696e67;
DELETE FROM holdfast_places WHERE ns = 0x6e AND party = 0x500818037f9830511b04ab2461032efa48edf57f56f2cf0ae92ae05d12f42321 AND queued = 1 AND grade = 0 AND arrival = 4 AND run = 0x77616974696e67;

-- a removed run
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
DELETE FROM holdfast_runs WHERE ns = 0x6e AND id = 0x6f6c64;
DELETE FROM holdfast_journal WHERE ns = 0x6e AND run = 0x6f6c64;
DELETE FROM holdfast_events WHERE ns = 0x6e AND run = 0x6f6c64;
DELETE FROM holdfast_slots WHERE ns = 0x6e AND owner = 0xcc32f00d9820e1b5891493adcb97188a497c5f9d87047d579a7e28d9bec50f55;
DELETE FROM holdfast_attributes WHERE ns = 0x6e AND term = 0x05a9c569a185ac60f5511f9760bc3f1ac046b20d18db2ad4d8fa86eda4f5b28e AND created_at = 1 AND run = 0x6f6c64;

-- a journal
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_runs SET record = N'{"id":"old","type":"order","created_at":1,"length":2}', stamp = 8 WHERE ns = 0x6e AND id = 0x6f6c64;
DELETE FROM holdfast_journal WHERE ns = 0x6e AND run = 0x6f6c64 AND number >= 1;
INSERT INTO holdfast_journal (ns, run, number, entry) VALUES (0x6e, 0x6f6c64, 0, N'{}'), (0x6e, 0x6f6c64, 1, N'{}');

-- an inbox
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_runs SET record = N'{"id":"old","type":"order","created_at":1,"posted":2}', stamp = 8 WHERE ns = 0x6e AND id = 0x6f6c64;
INSERT INTO holdfast_events (ns, run, number, event_key, event) VALUES (0x6e, 0x6f6c64, 2, 0x2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683, N'{"number":2,"kind":"signal","key":"key"}');

-- events that were read
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_runs SET record = N'{"id":"old","type":"order","created_at":1}', stamp = 8 WHERE ns = 0x6e AND id = 0x6f6c64;
DELETE FROM holdfast_events WHERE ns = 0x6e AND run = 0x6f6c64 AND number IN (1, 2);

-- an inbox that is removed
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_runs WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_runs SET record = N'{"id":"old","type":"order","created_at":1}', stamp = 8 WHERE ns = 0x6e AND id = 0x6f6c64;
DELETE FROM holdfast_events WHERE ns = 0x6e AND run = 0x6f6c64;

-- locks
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_locks WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND k IN (0x6e6577, 0x6f6c64, 0x6f6c6420746f6f)) AS x WHERE x.n = 2 AND x.total = 14) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_locks SET record = N'{}', due_at = NULL, stamp = 8 WHERE ns = 0x6e AND k = 0x6f6c64;
DELETE FROM holdfast_locks WHERE ns = 0x6e AND k = 0x6f6c6420746f6f;
INSERT INTO holdfast_locks (ns, k, record, due_at, stamp) VALUES (0x6e, 0x6e6577, N'{}', NULL, 8);

-- states
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_slots WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND id IN (0x548a6909248f1ed5fd10f29b2fac767bdecfdf65460a7468bd2fd3392812523d, 0x804a5abaa68ee082bff85a507e9a1280676f7aa98bbd18f870ae869d6a79ae47)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
INSERT INTO holdfast_slots (ns, id, owner, address, record, stamp) VALUES (0x6e, 0x548a6909248f1ed5fd10f29b2fac767bdecfdf65460a7468bd2fd3392812523d, 0xf519643d1814aa6959294f94b8a48fe1ebe2b7fed505225fc6bfa74807836f54, N'["global","","new"]', N'{"version":1,"value":"1","past":{}}', 8);
UPDATE holdfast_slots SET record = N'{"version":2,"value":"2","past":{}}', stamp = 8 WHERE ns = 0x6e AND id = 0x804a5abaa68ee082bff85a507e9a1280676f7aa98bbd18f870ae869d6a79ae47;

-- records
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_records WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND kind = 0x74616c6c79 AND k IN (0x6e6577, 0x6f6c64, 0x6f6c6420746f6f)) AS x WHERE x.n = 2 AND x.total = 14) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_records SET record = N'{}', due_at = NULL, stamp = 8 WHERE ns = 0x6e AND kind = 0x74616c6c79 AND k = 0x6f6c64;
DELETE FROM holdfast_records WHERE ns = 0x6e AND kind = 0x74616c6c79 AND k = 0x6f6c6420746f6f;
INSERT INTO holdfast_records (ns, kind, k, record, due_at, stamp) VALUES (0x6e, 0x74616c6c79, 0x6e6577, N'{}', 5, 8);

-- limits
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_limits WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND workflow IN (0x6e6577, 0x6f6c64)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_limits WITH (REPEATABLEREAD, ROWLOCK) WHERE ns = 0x6e AND workflow IN (0x6f6c642072656164)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n FROM holdfast_places WHERE ns = 0x6e AND workflow = 0x6f6c64 AND queued = 1) AS x WHERE x.n = 3) THROW 50001, N'a row was changed by another client', 1;
INSERT INTO holdfast_limits (ns, workflow, record, stamp) VALUES (0x6e, 0x6e6577, N'{"limits":[{"name":"pace","max":2,"per":3600000000}]}', 8);
UPDATE holdfast_limits SET record = N'{"limits":[{"name":"pace","max":2,"per":3600000000}]}', stamp = 8 WHERE ns = 0x6e AND workflow = 0x6f6c64;

-- workers
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_guards WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND name IN (0xed574aa71eb87d6cefff58373c93f1c2b7b4e46cc90cb6aacd8311279f9733da)) AS x WHERE x.n = 0 AND x.total = 0) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n FROM holdfast_runs WHERE ns = 0x6e AND worker = 0x6f6c64) AS x WHERE x.n = 3) THROW 50001, N'a row was changed by another client', 1;
INSERT INTO holdfast_guards (ns, name, about, stamp) VALUES (0x6e, 0xed574aa71eb87d6cefff58373c93f1c2b7b4e46cc90cb6aacd8311279f9733da, N'workers', 8);
DELETE FROM holdfast_workers WHERE ns = 0x6e AND id = 0x6e6577;
INSERT INTO holdfast_workers (ns, id, lease, record) VALUES (0x6e, 0x6e6577, 0x776f726b65722f6e6577, N'{"id":"w","name":"w","types":["order"],"since":1}');
DELETE FROM holdfast_workers WHERE ns = 0x6e AND id = 0x6f6c64;

-- starts that a limit counts
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
IF NOT EXISTS (SELECT 1 AS met FROM (SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total FROM holdfast_guards WITH (READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST) WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11)) AS x WHERE x.n = 1 AND x.total = 7) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_guards SET stamp = 8 WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11);
INSERT INTO holdfast_starts (ns, party, at, run, stamp) VALUES (0x6e, 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11, 1000000, 0x6e6577, 8);
DELETE FROM holdfast_starts WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 AND at < (SELECT y.at FROM (SELECT CASE WHEN COUNT(*) < 2 THEN -4611686018427387904 ELSE MIN(x.at) END AS at FROM (SELECT at FROM holdfast_starts WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 AND at <= 1000000 ORDER BY at DESC OFFSET 0 ROWS FETCH NEXT 2 ROWS ONLY) AS x) AS y);

-- an index entry of a run that cannot be read
IF NOT EXISTS (SELECT 1 AS met WHERE DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) - 1000000 <= 30000000) THROW 50001, N'a row was changed by another client', 1;
UPDATE holdfast_runs SET due_at = 9 WHERE ns = 0x6e AND id = 0x6f6c64 AND due_at = -5;
