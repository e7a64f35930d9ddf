-- Paired differences to full cache, their intervals and Holm-adjusted p.
SELECT suite, task, length, coalesce('keep ' || keep, entries || ' entries', bytes || ' bytes') AS budget,
       method, name AS metric, round(delta, 6) AS difference, round(delta_lo, 6) AS lo,
       round(delta_hi, 6) AS hi, round(p, 4) AS p, mark, n, clusters
FROM v_score
WHERE run = ?1 AND delta IS NOT NULL
ORDER BY suite, task, length, name, keep DESC, entries DESC, bytes DESC, abs(delta);
