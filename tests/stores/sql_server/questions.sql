-- RunById(id='old')
SELECT id, record, stamp FROM holdfast_runs WHERE ns = 0x6e AND id IN (0x6f6c64);

-- RunByKey(workflow='order', key='key')
SELECT start_key, id FROM holdfast_runs WHERE ns = 0x6e AND start_key IN (0x51e48d91dbef5fefaf450942c73b018eddd462f9337a185e9dcf9faee9621d3d);

-- Entries(run='old', whole=True)
SELECT run, entry FROM holdfast_journal WHERE ns = 0x6e AND run IN (0x6f6c64) ORDER BY run, number;

-- Entries(run='new', whole=False)
SELECT run, entry FROM holdfast_journal WHERE ns = 0x6e AND run IN (0x6e6577) AND number = 0 ORDER BY run, number;

-- RunEvents(run='old', after=3)
SELECT event FROM holdfast_events WHERE ns = 0x6e AND run = 0x6f6c64 AND number > 3 ORDER BY number;

-- EventByKey(run='old', key='key')
SELECT number FROM holdfast_events WHERE ns = 0x6e AND run = 0x6f6c64 AND event_key = 0x2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683;

-- RegisteredWorkers()
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xed574aa71eb87d6cefff58373c93f1c2b7b4e46cc90cb6aacd8311279f9733da);
SELECT w.id, w.record, l.k, l.record, l.stamp FROM holdfast_workers w LEFT JOIN holdfast_locks l ON l.ns = w.ns AND l.k = w.lease WHERE w.ns = 0x6e;

-- LockByKey(key='lamp ä')
SELECT k, record, stamp FROM holdfast_locks WHERE ns = 0x6e AND k IN (0x6c616d7020c3a4);

-- LockByKey(key='worker/w')
SELECT k, record, stamp FROM holdfast_locks WHERE ns = 0x6e AND k IN (0x776f726b65722f77);

-- LimitsOf(workflow='order')
SELECT workflow, record, stamp FROM holdfast_limits WHERE ns = 0x6e AND workflow IN (0x6f72646572);

-- SlotAt(address=('global', '', 'old'))
SELECT id, record, stamp FROM holdfast_slots WHERE ns = 0x6e AND id IN (0x804a5abaa68ee082bff85a507e9a1280676f7aa98bbd18f870ae869d6a79ae47);

-- SlotsOf(owner='old')
SELECT owner, address FROM holdfast_slots WHERE ns = 0x6e AND owner IN (0xcc32f00d9820e1b5891493adcb97188a497c5f9d87047d579a7e28d9bec50f55);

-- RecordAt(kind='tally', key='old')
SELECT k, record, stamp FROM holdfast_records WHERE ns = 0x6e AND kind = 0x74616c6c79 AND k IN (0x6f6c64);

-- GroupSize(group='group', queued=True)
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11);
SELECT COUNT(*) FROM holdfast_places WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 AND queued = 1;

-- QueuedLimitKeys(workflow='order')
SELECT MAX(place), COUNT(*) FROM holdfast_places WHERE ns = 0x6e AND workflow = 0x6f72646572 AND queued = 1 GROUP BY party;

-- StartsToCome(group='group')
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11);
SELECT at FROM holdfast_starts WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 AND at > DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());

-- RunsAtOnce(limit=8, type='order')
SELECT due_at, id FROM holdfast_runs WHERE ns = 0x6e AND type = 0x6f72646572 AND due_at < 0 AND id NOT IN (0x62757379) ORDER BY due_at, id OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- RunsByTime(limit=8, type='order')
SELECT due_at, id FROM holdfast_runs WHERE ns = 0x6e AND type = 0x6f72646572 AND due_at >= 0 AND id NOT IN (0x62757379) ORDER BY due_at, id OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- Claimable(type='order', limit=8)

-- RunsOf(limit=None, worker='w')
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xed574aa71eb87d6cefff58373c93f1c2b7b4e46cc90cb6aacd8311279f9733da);
SELECT id FROM holdfast_runs WHERE ns = 0x6e AND worker = 0x77 ORDER BY id;

-- Members(limit=8, group='group', queued=True)
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11);
SELECT grade, arrival, run FROM holdfast_places WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 AND queued = 1 ORDER BY grade, arrival, run OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- LatestArrivals(limit=8, group='group', queued=True, rank=-5)
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11);
SELECT arrival, run FROM holdfast_places WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 AND queued = 1 AND grade = -5 ORDER BY arrival DESC, run DESC OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- LatestStarts(limit=8, group='group')
SELECT name, stamp FROM holdfast_guards WHERE ns = 0x6e AND name IN (0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11);
SELECT at, run FROM holdfast_starts WHERE ns = 0x6e AND party = 0xad936fcbed631fa67e05c3ea03953905221c9d46af0616b70badf105a966fb11 ORDER BY at DESC, run DESC OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- DueLocks(limit=8)
SELECT due_at, k FROM holdfast_locks WHERE ns = 0x6e AND due_at <= DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) ORDER BY due_at, k OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- LocksAfter(limit=8, after='old')
SELECT k FROM holdfast_locks WHERE ns = 0x6e AND k > 0x6f6c64 ORDER BY k OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- RecordsAfter(limit=8, kind='tally', prefix='o', after='old')
SELECT k, record, stamp FROM holdfast_records WHERE ns = 0x6e AND kind = 0x74616c6c79 AND k >= 0x6f AND k > 0x6f6c64 AND k < 0x70 ORDER BY k OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- DueRecords(limit=8, kind='tally')
SELECT k, record, stamp, due_at FROM holdfast_records WHERE ns = 0x6e AND kind = 0x74616c6c79 AND due_at <= DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) ORDER BY due_at, k OFFSET 0 ROWS FETCH NEXT 8 ROWS ONLY;

-- the time, after all of them
SELECT DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME());
