-- Scores by budget: every metric of a run beside full cache's.
-- evictkit results query results/queries/scores.sql [RUN]
SELECT suite, task, length, coalesce('keep ' || keep, entries || ' entries', bytes || ' bytes', '-') AS budget,
       method, name AS metric, unit, round(value, 6) AS value, round(stderr, 6) AS se,
       round(ci_lo, 6) AS lo, round(ci_hi, 6) AS hi, round(full_value, 6) AS full, n, clusters
FROM v_score
WHERE run = ?1
ORDER BY suite, task, length, keep IS NULL, keep DESC, entries DESC, bytes DESC, name, value;
