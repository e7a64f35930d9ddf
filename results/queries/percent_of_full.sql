-- Share of full cache's score, in percent, where that is defined.
SELECT suite, task, length, coalesce('keep ' || keep, entries || ' entries', bytes || ' bytes') AS budget,
       s.method, s.name AS metric, round(s.pct_of_full, 2) AS percent, round(m.ci_lo, 2) AS lo,
       round(m.ci_hi, 2) AS hi, round(keep_measured, 4) AS kept, s.mark
FROM v_score s JOIN metric m ON m.cell = s.cell AND m.name = 'pct_of_full:' || s.name
WHERE run = ?1 AND s.pct_of_full IS NOT NULL
ORDER BY suite, task, length, keep DESC, entries DESC, s.bytes DESC, s.name, percent DESC;
