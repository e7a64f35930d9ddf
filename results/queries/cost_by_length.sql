-- What a policy costs by prompt length: bytes and milliseconds; full cache is the row of keep 1.
SELECT c.task, c.length, coalesce(c.keep, 1) AS keep, c.method, count(*) AS n,
       round(avg(s.n_prompt), 0) AS prompt_tokens, round(avg(s.kv_bytes_mean), 0) AS kv_bytes,
       max(s.kv_bytes_peak) AS kv_bytes_peak, max(s.state_bytes) AS state_bytes,
       round(avg(s.prefill_ns) / 1e6, 2) AS prefill_ms, round(avg(s.ttft_ns) / 1e6, 2) AS ttft_ms,
       round(avg(s.itl_ns) / 1e6, 3) AS itl_ms, round(avg(s.score_ns) / 1e6, 3) AS scoring_ms
FROM cell c JOIN sample s ON s.cell = c.id
WHERE c.run = ?1
GROUP BY c.id
ORDER BY c.task, c.length, keep DESC, c.method;
