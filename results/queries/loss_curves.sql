-- Loss curves of every training run, thinned to about 100 rows each; the last step is always there.
SELECT substr(t.run, 1, 8) AS run, r.scorer, t.step, t.split, round(t.loss, 6) AS loss,
       round(t.acc, 4) AS acc, t.lr, round(t.grad_norm, 4) AS grad_norm,
       CASE WHEN t.ns > 0 THEN round(t.tokens * 1e9 / t.ns, 1) END AS tokens_per_s
FROM train_step t JOIN train_run r ON r.run = t.run
WHERE t.split = 'valid' OR t.step % max(1, r.steps_done / 100) = 0
   OR t.step = (SELECT max(step) FROM train_step x WHERE x.run = t.run)
ORDER BY t.run, t.step, t.split;
