-- End metrics of trained variants beside what was different in their training: one row a variant, task and budget.
-- ?1 is the evaluation.  Settings come from the training run that the weights name; NULL: that run is in another
-- database.  versus_best is against the best training-free method of the same budget (of a score: points).
WITH v AS (
  SELECT s.*, w.trained, w.hash FROM v_score s LEFT JOIN cell_weights w ON w.cell = s.cell
  WHERE s.run = ?1 AND s.name IN ('Mean KLD', 'score') AND s.method <> 'full'),
rules AS (
  SELECT *, row_number() OVER (PARTITION BY suite, task, variant, length, query_aware, seed, keep, entries, bytes, name
                               ORDER BY CASE name WHEN 'score' THEN -value ELSE value END, method) AS place
  FROM v WHERE learned = 0 AND policy NOT LIKE 'oracle%' AND method NOT LIKE 'oracle%'),
p AS (
  SELECT run, max(CASE key WHEN 'target.reduce' THEN value END) AS target,
         max(CASE key WHEN 'target.group' THEN value END) AS heads,
         max(CASE key WHEN 'loss.kind' THEN value END) AS loss,
         max(CASE key WHEN 'scorer.kind' THEN value END) AS scorer,
         max(CASE key WHEN 'scorer.age' THEN value END) AS age,
         max(CASE key WHEN 'scorer.delay' THEN value END) AS delay,
         max(CASE key WHEN 'scorer.carried' THEN value END) AS carried,
         max(CASE key WHEN 'data.mix' THEN value END) AS mix,
         max(CASE key WHEN 'seed' THEN value END) AS seed
  FROM run_param GROUP BY run)
SELECT v.task, v.length, v.query_aware AS aware, v.variant AS decode,
       coalesce('keep ' || v.keep, v.entries || ' entries', v.bytes || ' bytes') AS budget, v.name AS metric, v.method,
       p.scorer, p.delay, p.age, p.carried, p.loss, p.target, p.heads, p.mix, p.seed,
       round(v.value, 6) AS value, round(v.ci_lo, 6) AS lo, round(v.ci_hi, 6) AS hi,
       r.method AS best_rule, round(v.value - r.value, 6) AS versus_best, v.n, substr(v.trained, 1, 8) AS trained
FROM v LEFT JOIN p ON p.run = v.trained
LEFT JOIN rules r ON r.place = 1 AND r.suite = v.suite AND r.task = v.task AND r.variant = v.variant
      AND r.length = v.length AND r.query_aware = v.query_aware AND r.seed = v.seed AND r.name = v.name
      AND r.keep IS v.keep AND r.entries IS v.entries AND r.bytes IS v.bytes
WHERE v.learned = 1
ORDER BY v.task, v.length, v.query_aware, v.name, v.keep DESC, v.entries DESC, v.bytes DESC,
         CASE v.name WHEN 'score' THEN -v.value ELSE v.value END, v.method;
