-- Needle and passkey grid: share right by length and haystack, one row a policy, length and cluster.
SELECT c.task, c.length, c.policy, s.cluster, count(*) AS n, round(100 * avg(s.score), 2) AS score,
       sum(s.flag = 'empty') AS empty, round(avg(s.n_prompt), 0) AS prompt_tokens
FROM cell c JOIN sample s ON s.cell = c.id
WHERE c.run = ?1 AND s.score IS NOT NULL
GROUP BY c.id, s.cluster
ORDER BY c.task, c.length, c.policy, s.cluster;
