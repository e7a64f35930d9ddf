-- One row a method and task, best first: the value at each budget, from the largest to the smallest (four at most).
-- Mean KLD of tasks that grade nothing, else the score.  learned: trained or with fitted maps.
WITH s AS (
  SELECT *, dense_rank() OVER (PARTITION BY suite, task, length, query_aware
                               ORDER BY keep DESC, entries DESC, bytes DESC) AS place
  FROM v_score WHERE run = ?1 AND name IN ('Mean KLD', 'score') AND method <> 'full')
SELECT s.suite, s.task, s.length, s.query_aware AS aware, s.name AS metric, s.method, s.learned, round(f.value, 4) AS full,
       round(max(CASE place WHEN 1 THEN s.value END), 4) AS first, round(max(CASE place WHEN 2 THEN s.value END), 4) AS second,
       round(max(CASE place WHEN 3 THEN s.value END), 4) AS third, round(max(CASE place WHEN 4 THEN s.value END), 4) AS fourth,
       max(s.n) AS n
FROM s JOIN v_score f ON f.run = s.run AND f.suite = s.suite AND f.task = s.task AND f.length = s.length
     AND f.query_aware = s.query_aware AND f.method = 'full' AND f.name = s.name
WHERE s.name = 'score' OR NOT EXISTS (SELECT 1 FROM s x WHERE x.suite = s.suite AND x.task = s.task AND x.name = 'score')
GROUP BY s.suite, s.task, s.length, s.query_aware, s.name, s.method
ORDER BY s.suite, s.task, s.length, s.query_aware, avg(CASE s.name WHEN 'score' THEN -s.value ELSE s.value END);
