-- docs/stores/sqlserver.md
SELECT CONVERT(VARCHAR(1180), k) AS lock_key, JSON_QUERY(record, '$.holders') AS held_by,
       (SELECT COUNT(*) FROM OPENJSON(record, '$.waiters')) AS waiting
  FROM holdfast_locks WHERE ns = CONVERT(VARBINARY(512), 'default');
SELECT TOP (20) CONVERT(VARCHAR(512), id) AS run, JSON_VALUE(record, '$.result') AS error
  FROM holdfast_runs WHERE ns = CONVERT(VARBINARY(512), 'default') AND status = CONVERT(VARBINARY(512), 'failed')
  ORDER BY created_at DESC;
SELECT number, entry FROM holdfast_journal WHERE ns = CONVERT(VARBINARY(512), 'default')
  AND run = CONVERT(VARBINARY(512), 'order-42') ORDER BY number;
