-- Learning curves of every training run, thinned to about 100 rows each; the last step is always there.  acc is the
-- recall of the target's best quarter, of ranking losses the share of boundary decisions that are right; recall is
-- that of the k best, chance what a guess would recall; boundary is boundary accuracy, whatever the loss.
SELECT substr(t.run, 1, 8) AS run, r.scorer, r.loss AS kind, t.step, t.split, round(t.loss, 6) AS loss,
       round(t.acc, 4) AS acc,
       (SELECT round(value, 4) FROM train_value v
        WHERE v.run = t.run AND v.step = t.step AND v.split = t.split AND v.name = 'recall') AS recall,
       (SELECT round(value, 4) FROM train_value v
        WHERE v.run = t.run AND v.step = t.step AND v.split = t.split AND v.name = 'chance') AS chance,
       (SELECT round(value, 4) FROM train_value v
        WHERE v.run = t.run AND v.step = t.step AND v.split = t.split AND v.name = 'boundary') AS boundary,
       t.lr, round(t.grad_norm, 4) AS grad_norm,
       CASE WHEN t.ns > 0 THEN round(t.tokens * 1e9 / t.ns, 1) END AS tokens_per_s
FROM train_step t JOIN train_run r ON r.run = t.run
WHERE t.split = 'valid' OR t.step % max(1, r.steps_done / 100) = 0
   OR t.step = (SELECT max(step) FROM train_step x WHERE x.run = t.run)
ORDER BY t.run, t.step, t.split;
