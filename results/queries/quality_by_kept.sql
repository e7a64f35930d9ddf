-- Quality against the kept fraction: what the figure of `evictkit results plot` draws, a row a point.  role says
-- how it is drawn: learned, rule (training-free), or a bound (oracle, full).
SELECT suite, task, length, query_aware AS aware, variant AS decode, name AS metric,
       CASE WHEN method = 'full' OR method LIKE 'oracle%' OR policy LIKE 'oracle%' THEN 'bound'
            WHEN learned = 1 THEN 'learned' ELSE 'rule' END AS role,
       method, coalesce(keep, 1) AS keep, entries, bytes, round(keep_measured, 4) AS kept,
       round(value, 6) AS value, round(ci_lo, 6) AS lo, round(ci_hi, 6) AS hi, n
FROM v_score
WHERE run = ?1 AND name IN ('Mean KLD', 'score')
ORDER BY suite, task, length, query_aware, name, role, method, keep DESC, entries DESC, bytes DESC;
