-- Share of the values' variance that VECTOR's maps explain on held-out tokens, per fit, layer and head.
SELECT substr(h.run, 1, 8) AS run, r.scorer, h.layer, h.head, round(h.value, 4) AS r2,
       round(f.value, 4) AS r2_fit, l.value AS lambda,
       round(avg(h.value) OVER (PARTITION BY h.run, h.layer), 4) AS r2_layer
FROM train_head h JOIN train_run r ON r.run = h.run
LEFT JOIN train_head f ON f.run = h.run AND f.layer = h.layer AND f.head = h.head AND f.name = 'r2_fit'
LEFT JOIN train_head l ON l.run = h.run AND l.layer = h.layer AND l.head = h.head AND l.name = 'lambda'
WHERE h.name = 'r2'
ORDER BY h.run, h.layer, h.head;
