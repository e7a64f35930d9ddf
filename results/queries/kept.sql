-- Asked beside measured: over_budget must be 0 in every row.
SELECT k.suite, k.task, k.length, k.policy, c.keep AS keep_asked, round(k.keep_mean, 4) AS keep_measured,
       k.kept_asked, k.kept_min, round(k.kept_mean, 1) AS kept_mean, k.kept_max, k.over_budget,
       k.kv_bytes_peak, k.samples
FROM v_kept k JOIN cell c ON c.id = k.cell
WHERE k.run = ?1
ORDER BY k.suite, k.task, k.length, c.keep IS NULL DESC, c.keep DESC, k.policy;
