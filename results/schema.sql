-- results/schema.sql - schema of an evictkit database, version 3.
--
-- A file of an older version is lifted when it is opened for writing: tables that it lacks are made, views are
-- made anew.  So a table that was once released keeps its text; what is new comes as a table of its own.
--
-- One transaction per sample index.  Table metric can be rebuilt from sample and sample_value at
-- any time (`evictkit results rebuild`).  A file with a higher user_version is refused by name.
-- journal_mode = WAL, synchronous = FULL, foreign_keys = ON and trusted_schema = OFF are set by
-- results/store.c on every open.
PRAGMA application_id = 1701538164;  -- 'ekit'
PRAGMA user_version = 3;             -- schema version

CREATE TABLE run(
  id TEXT PRIMARY KEY,               -- 32 hex digits: xxh3-128 of the resolved config
  kind TEXT NOT NULL CHECK(kind IN ('evaluate','train','bench')),
  status TEXT NOT NULL CHECK(status IN ('running','done','failed','interrupted')),
  created TEXT NOT NULL, finished TEXT,          -- ISO 8601, UTC
  revision TEXT NOT NULL,                        -- program version and source revision
  device TEXT NOT NULL, kernel TEXT NOT NULL,    -- 'cpu avx512 16 threads'; attention kernel and KV dtype
  model TEXT NOT NULL, model_hash TEXT NOT NULL, tokenizer_hash TEXT NOT NULL, template_hash TEXT NOT NULL,
  config TEXT NOT NULL                           -- the resolved YAML, whole
) STRICT;

CREATE TABLE run_param(              -- the same config, one leaf per row: 'methods.1.window' = '32'
  run TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE,
  key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY(run, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE cell(                   -- one (task, length, method, budget, seed)
  id INTEGER PRIMARY KEY,
  run TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE,
  suite TEXT NOT NULL, task TEXT NOT NULL,
  variant TEXT NOT NULL DEFAULT '',              -- protocol: '0shot', 'own', 'kvpress', ...
  length INTEGER NOT NULL DEFAULT 0,             -- target tokens; 0 = the text's own length
  method TEXT NOT NULL, policy TEXT NOT NULL,    -- 'full' is the baseline; canonical SPEC, budget included
  learned INTEGER NOT NULL DEFAULT 0 CHECK(learned IN (0,1)),  -- the method's scorer was trained
  keep REAL CHECK(keep > 0 AND keep <= 1), keep_of TEXT CHECK(keep_of IN ('prompt','seen')),
  entries INTEGER CHECK(entries > 0), bytes INTEGER CHECK(bytes > 0),
  query_aware INTEGER NOT NULL CHECK(query_aware IN (0,1)),
  seed INTEGER NOT NULL,
  base INTEGER REFERENCES cell(id) ON DELETE SET NULL,  -- the full-cache cell with the same samples
  status TEXT NOT NULL CHECK(status IN ('pending','running','done','failed')),
  CHECK((method = 'full') = (keep IS NULL AND entries IS NULL AND bytes IS NULL)),
  CHECK((keep IS NOT NULL) + (entries IS NOT NULL) + (bytes IS NOT NULL) <= 1),
  CHECK((keep IS NULL) = (keep_of IS NULL)),
  UNIQUE(run, suite, task, variant, length, policy, query_aware, seed)
) STRICT;
CREATE INDEX cell_task ON cell(suite, task, length, method);
CREATE INDEX cell_base ON cell(base);

CREATE TABLE cell_weights(           -- what a learned cell scored with: joins end metrics to the training that made it
  cell INTEGER PRIMARY KEY REFERENCES cell(id) ON DELETE CASCADE,
  hash TEXT NOT NULL,                            -- of the parameters' file, xxh3-128
  trained TEXT NOT NULL                          -- id of the training run, in this database or another; '' = unknown
) STRICT, WITHOUT ROWID;

CREATE TABLE sample(
  id INTEGER PRIMARY KEY,
  cell INTEGER NOT NULL REFERENCES cell(id) ON DELETE CASCADE,
  doc_id TEXT NOT NULL, rep INTEGER NOT NULL DEFAULT 0,  -- rep 0..k-1 under repeated sampling
  cluster TEXT NOT NULL,                                 -- problem, document or haystack
  prompt_hash TEXT NOT NULL,
  n_original INTEGER NOT NULL, n_prompt INTEGER NOT NULL, n_gen INTEGER,  -- tokens before and after truncation
  stop_reason TEXT CHECK(stop_reason IN ('eos','stop','length','forced','error')),
  prediction TEXT, parsed TEXT, reference TEXT,          -- parsed NULL = unanswered; reference a JSON array
  flag TEXT,                     -- 'empty', 'unknown', 'truncated', 'wrong_key', 'long_sentence'
  score REAL CHECK(score BETWEEN 0 AND 1),
  kept_asked INTEGER, kept_min INTEGER, kept_mean REAL, kept_max INTEGER,  -- over layers, heads, steps
  keep_mean REAL,                                        -- kept / seen, mean over steps
  kv_bytes_mean INTEGER, kv_bytes_peak INTEGER, state_bytes INTEGER,       -- state = the scorer's own
  prefill_ns INTEGER, ttft_ns INTEGER, itl_ns INTEGER, score_ns INTEGER,
  error TEXT, UNIQUE(cell, doc_id, rep)
) STRICT;

CREATE TABLE sample_value(           -- further numbers of a sample: 'Mean KLD', 'needle10', 'recall@k'
  sample INTEGER NOT NULL REFERENCES sample(id) ON DELETE CASCADE,
  name TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY(sample, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE metric(                 -- aggregates, rebuilt from sample; 'delta:X' and 'pct_of_full:X' beside X
  cell INTEGER NOT NULL REFERENCES cell(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  unit TEXT NOT NULL,                            -- 'percent','nat','ratio','bytes','tok/s','ns','count'
  value REAL, stderr REAL, ci_lo REAL, ci_hi REAL,       -- value NULL = undefined
  n INTEGER NOT NULL, clusters INTEGER NOT NULL, p REAL, -- p: Holm-adjusted over the run's table
  mark TEXT NOT NULL DEFAULT '' CHECK(mark IN ('','≈','=','*')),
  PRIMARY KEY(cell, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE train_run(
  run TEXT PRIMARY KEY REFERENCES run(id) ON DELETE CASCADE,
  scorer TEXT NOT NULL, loss TEXT NOT NULL, params INTEGER NOT NULL,
  text_hash TEXT NOT NULL, target_hash TEXT NOT NULL,
  steps_asked INTEGER NOT NULL, steps_done INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE train_step(
  run TEXT NOT NULL REFERENCES train_run(run) ON DELETE CASCADE,
  step INTEGER NOT NULL, split TEXT NOT NULL DEFAULT 'train' CHECK(split IN ('train','valid')),
  loss REAL NOT NULL, lr REAL, grad_norm REAL, acc REAL, -- acc = top-k overlap with the target
  tokens INTEGER, ns INTEGER, PRIMARY KEY(run, step, split)
) STRICT, WITHOUT ROWID;

CREATE TABLE train_value(            -- further numbers of a step: 'recall' (of the k best), 'chance', 'boundary'
  run TEXT NOT NULL REFERENCES train_run(run) ON DELETE CASCADE,
  step INTEGER NOT NULL, split TEXT NOT NULL CHECK(split IN ('train','valid')),
  name TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY(run, step, split, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE train_head(             -- what a run found for each layer and KV head: 'r2' (held out), 'r2_fit', 'lambda'
  run TEXT NOT NULL REFERENCES train_run(run) ON DELETE CASCADE,
  layer INTEGER NOT NULL, head INTEGER NOT NULL,
  name TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY(run, layer, head, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE artifact(
  id INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE,
  kind TEXT NOT NULL, path TEXT NOT NULL, bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL CHECK(length(sha256) = 64), UNIQUE(run, path)
) STRICT;

-- Every metric with its baseline, difference and share beside it.  keep .. bytes is what was asked,
-- keep_measured (kept / seen, mean over steps) what was found.
CREATE VIEW v_score AS
SELECT c.run, c.suite, c.task, c.variant, c.length, c.method, c.policy, c.seed, m.name, m.unit, m.value, m.stderr,
       m.n, m.clusters, b.value AS full_value, d.value AS delta, d.ci_lo AS delta_lo, d.ci_hi AS delta_hi,
       q.value AS pct_of_full, d.mark,
       c.id AS cell, c.learned, c.query_aware, c.keep, c.keep_of, c.entries, c.bytes,
       k.value AS keep_measured, m.ci_lo, m.ci_hi, d.p
FROM cell c JOIN metric m ON m.cell = c.id
LEFT JOIN metric b ON b.cell = c.base AND b.name = m.name
LEFT JOIN metric d ON d.cell = c.id AND d.name = 'delta:' || m.name
LEFT JOIN metric q ON q.cell = c.id AND q.name = 'pct_of_full:' || m.name
LEFT JOIN metric k ON k.cell = c.id AND k.name = 'keep_mean'
WHERE m.name NOT LIKE 'delta:%' AND m.name NOT LIKE 'pct_of_full:%';

CREATE VIEW v_kept AS                -- asked beside measured; over_budget must be 0
SELECT c.run, c.suite, c.task, c.length, c.policy, count(*) AS samples, min(s.kept_min) AS kept_min,
       avg(s.kept_mean) AS kept_mean, max(s.kept_max) AS kept_max, avg(s.keep_mean) AS keep_mean,
       max(s.kv_bytes_peak) AS kv_bytes_peak, sum(s.kept_max > s.kept_asked) AS over_budget,
       max(s.kept_asked) AS kept_asked, c.id AS cell
FROM cell c JOIN sample s ON s.cell = c.id GROUP BY c.id;
