-- Each learned method beside the best training-free one of the same budget, by the mean of a metric.
-- `evictkit results compare` has the paired intervals.
WITH s AS (
  SELECT * FROM v_score
  WHERE run = ?1 AND name IN ('Mean KLD', 'score') AND method <> 'full'
        AND policy NOT LIKE 'oracle%' AND method NOT LIKE 'oracle%'),
ranked AS (
  SELECT *, row_number() OVER (PARTITION BY suite, task, variant, length, query_aware, seed, keep, entries, bytes, name
                               ORDER BY CASE name WHEN 'score' THEN -value ELSE value END, method) AS place
  FROM s WHERE learned = 0)
SELECT s.suite, s.task, s.length,
       coalesce('keep ' || s.keep, s.entries || ' entries', s.bytes || ' bytes') AS budget, s.name AS metric,
       s.method, round(s.value, 6) AS value, b.method AS best_rule, round(b.value, 6) AS best_value,
       round(100 * (s.value / nullif(b.value, 0) - 1), 1) AS change_percent
FROM s JOIN ranked b USING (suite, task, variant, length, query_aware, seed, name)
WHERE s.learned = 1 AND b.place = 1 AND s.keep IS b.keep AND s.entries IS b.entries AND s.bytes IS b.bytes
ORDER BY s.suite, s.task, s.length, s.keep DESC, s.entries DESC, s.name, s.method;
