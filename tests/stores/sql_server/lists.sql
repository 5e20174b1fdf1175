-- ListLocks
SELECT k, record FROM holdfast_locks WHERE ns = 0x6e AND k > 0x6162 AND k >= 0x61 AND k < 0x62 ORDER BY k OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());

-- ListRuns
SELECT created_at, run FROM holdfast_attributes WHERE ns = 0x6e AND term = 0x05a9c569a185ac60f5511f9760bc3f1ac046b20d18db2ad4d8fa86eda4f5b28e AND (created_at < 5 OR run < 0x6f6c64) AND created_at >= 1 AND created_at < 9 AND created_at <= 5 ORDER BY created_at DESC, run DESC OFFSET 0 ROWS FETCH NEXT 256 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND id >= 0x6f AND id < 0x70 ORDER BY id OFFSET 0 ROWS FETCH NEXT 256 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND workflow = 0x6f72646572 AND status = 0x6661696c6564 AND (created_at < 5 OR id < 0x6f6c64) AND created_at >= 1 AND created_at < 9 AND created_at <= 5 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 256 ROWS ONLY;
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());

-- ListRuns
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x717565756564 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x70656e64696e67 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x72756e6e696e67 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x73757370656e646564 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x626c6f636b6564 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x636f6d706c65746564 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x6661696c6564 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x63616e63656c6c6564 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT created_at, id FROM holdfast_runs WHERE ns = 0x6e AND status = 0x74696d65645f6f7574 ORDER BY created_at DESC, id DESC OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());

-- CountRuns
SELECT type, COUNT(*) FROM holdfast_runs WHERE ns = 0x6e AND status IN (0x717565756564, 0x70656e64696e67, 0x72756e6e696e67, 0x73757370656e646564, 0x626c6f636b6564) GROUP BY type;
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());

-- ListEndedRuns
SELECT ended_at, id FROM holdfast_runs WHERE ns = 0x6e AND workflow = 0x6f72646572 AND status = 0x6661696c6564 AND ended_at < 9 AND ended_at >= 5 AND (ended_at > 5 OR id > 0x6f6c64) ORDER BY ended_at, id OFFSET 0 ROWS FETCH NEXT 3 ROWS ONLY;
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());

-- ListEndedWorkflows
SELECT workflow FROM holdfast_runs WHERE ns = 0x6e AND workflow > 0x61 ORDER BY workflow OFFSET 0 ROWS FETCH NEXT 1 ROWS ONLY;
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());
