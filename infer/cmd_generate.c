/* infer/cmd_generate.c - stream text under a policy, say what was kept. */
#include "commands.h"
#include "core/progress.h"
#include "infer/grid.h"
#include "infer/sample.h"
#include "infer/save_plan.h"
#include "infer/template.h"
#include "infer/utf8.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "usage: evictkit generate --model FILE.gguf [options] PROMPT\n"
    "\n"
    "  --policy SPEC       a method, or method:key=value,... (evictkit list methods; default "
    "full)\n"
    "  --keep F            keep this fraction of the prompt's entries, such as 0.25\n"
    "  --entries N         or so many per head\n"
    "  --decode WHEN       row: plan as the method says; grow: never after the first cut; hold:\n"
    "                      whenever over budget (default row)\n"
    "  --weights DIR       a trained scorer, for learned methods\n"
    "  --max-new N         tokens at most (default 256)\n"
    "  --temperature F --top-k N --top-p F --min-p F --seed N     (default: greedy)\n"
    "  --raw               the prompt as it is, without the model's chat template\n"
    "  --storage bf16|f32  of weights and cache (default bf16)\n"
    "  --prompt-file FILE  read the prompt from a file (- is standard input)\n"
    "  --save-plan FILE    write ids, scores, kept positions and logits as .safetensors\n"
    "\n"
    "Text goes to standard output, a summary to standard error.\n";

typedef struct options {
    const char *model, *policy, *keep, *weights, *prompt_file, *save_plan;
    char *prompt; /* owned */
    size_t prompt_size;
    int64_t entries, max_new;
    ek_decode decode;
    ek_sampling sampling;
    ek_dtype storage;
    int raw;
} options;

/* All that is open while generating; closed in one place. */
typedef struct session {
    ek_device *dev;
    ek_model *model;
    ek_tokenizer *tok;
    ek_template template;
    ek_weights *weights;
    ek_maps maps;
    ek_engine *engine;
    ek_method_set set;
    ek_scorer scorer;
    ek_policy policy;
    ek_tokens prompt;
    ek_cache cache;
    ek_row row;
    ek_sampler sampler;
    ek_saved_plan plan;
    float *logits, *prompt_logits; /* (n_vocab) */
    ek_text text;                  /* generated so far */
    size_t shown;                  /* bytes of it on the screen */
    int64_t n_new;
    double decode_s;
} session;

/* ---- options ---- */

static ek_code read_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out,
                        ek_err *err)
{
    char *end;
    long long x;

    errno = 0;
    x = strtoll(text, &end, 10);
    if (errno || end == text || *end || x < lo || x > hi)
        return EK_FAIL(err, EK_EASKED, "--%s: found \"%s\", expected a whole number %lld .. %lld",
                       name, text, (long long)lo, (long long)hi);
    *out = x;
    return EK_OK;
}

static ek_code read_float(const char *name, const char *text, double *out, ek_err *err)
{
    char *end;
    const double x = strtod(text, &end);

    if (end == text || *end)
        return EK_FAIL(err, EK_EASKED, "--%s: found \"%s\", expected a number", name, text);
    *out = x;
    return EK_OK;
}

static ek_code read_word(const char *name, const char *text, const char *const *words, int n,
                         int *out, ek_err *err)
{
    char list[128] = "";

    for (int i = 0; i < n; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return EK_OK;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", words[i]);
    }
    return EK_FAIL(err, EK_EASKED, "--%s: found \"%s\", expected one of %s", name, text, list);
}

enum {
    OPT_MODEL = 1,
    OPT_POLICY,
    OPT_KEEP,
    OPT_ENTRIES,
    OPT_DECODE,
    OPT_WEIGHTS,
    OPT_MAX_NEW,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_SEED,
    OPT_RAW,
    OPT_STORAGE,
    OPT_PROMPT_FILE,
    OPT_SAVE_PLAN,
    OPT_HELP
};

static const struct option long_options[] = {
    {"model", 1, NULL, OPT_MODEL},
    {"policy", 1, NULL, OPT_POLICY},
    {"keep", 1, NULL, OPT_KEEP},
    {"entries", 1, NULL, OPT_ENTRIES},
    {"decode", 1, NULL, OPT_DECODE},
    {"weights", 1, NULL, OPT_WEIGHTS},
    {"max-new", 1, NULL, OPT_MAX_NEW},
    {"temperature", 1, NULL, OPT_TEMPERATURE},
    {"top-k", 1, NULL, OPT_TOP_K},
    {"top-p", 1, NULL, OPT_TOP_P},
    {"min-p", 1, NULL, OPT_MIN_P},
    {"seed", 1, NULL, OPT_SEED},
    {"raw", 0, NULL, OPT_RAW},
    {"storage", 1, NULL, OPT_STORAGE},
    {"prompt-file", 1, NULL, OPT_PROMPT_FILE},
    {"save-plan", 1, NULL, OPT_SAVE_PLAN},
    {"help", 0, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static ek_code read_option(options *o, int which, const char *name, const char *arg, ek_err *err)
{
    static const char *const decodes[] = {"row", "grow", "hold"};
    static const char *const storages[] = {"bf16", "f32"};
    int64_t x = 0;
    int word = 0;

    switch (which) {
    case OPT_MODEL:
        o->model = arg;
        return EK_OK;
    case OPT_POLICY:
        o->policy = arg;
        return EK_OK;
    case OPT_KEEP:
        o->keep = arg;
        return EK_OK;
    case OPT_ENTRIES:
        return read_int(name, arg, 1, INT32_MAX, &o->entries, err);
    case OPT_DECODE:
        EK_TRY(read_word(name, arg, decodes, 3, &word, err));
        o->decode = (ek_decode)word;
        return EK_OK;
    case OPT_WEIGHTS:
        o->weights = arg;
        return EK_OK;
    case OPT_MAX_NEW:
        return read_int(name, arg, 0, INT32_MAX, &o->max_new, err);
    case OPT_TEMPERATURE:
        return read_float(name, arg, &o->sampling.temperature, err);
    case OPT_TOP_K:
        return read_int(name, arg, 0, INT32_MAX, &o->sampling.top_k, err);
    case OPT_TOP_P:
        return read_float(name, arg, &o->sampling.top_p, err);
    case OPT_MIN_P:
        return read_float(name, arg, &o->sampling.min_p, err);
    case OPT_SEED:
        EK_TRY(read_int(name, arg, 0, INT64_MAX, &x, err));
        o->sampling.seed = (uint64_t)x;
        return EK_OK;
    case OPT_RAW:
        o->raw = 1;
        return EK_OK;
    case OPT_STORAGE:
        EK_TRY(read_word(name, arg, storages, 2, &word, err));
        o->storage = word ? EK_F32 : EK_BF16;
        return EK_OK;
    case OPT_PROMPT_FILE:
        o->prompt_file = arg;
        return EK_OK;
    default:
        o->save_plan = arg;
        return EK_OK;
    }
}

static ek_code unknown_option(const char *arg, ek_err *err)
{
    const char *names[EK_COUNT(long_options)];
    const char *near;
    int n = 0;

    for (; long_options[n].name; n++)
        names[n] = long_options[n].name;
    near = ek_nearest(arg + (arg[0] == '-') + (arg[0] && arg[1] == '-'), names, n);
    return EK_FAIL(err, EK_EASKED, "generate: found '%s'%s%s%s; generate --help lists the options",
                   arg, near ? ", did you mean --" : "", near ? near : "", near ? "?" : "");
}

static ek_code read_file(options *o, ek_err *err)
{
    const int is_stdin = strcmp(o->prompt_file, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(o->prompt_file, "rb");
    size_t room = 0, got;

    if (!f)
        return EK_FAIL(err, EK_EASKED, "%s: %s", o->prompt_file, strerror(errno));
    do {
        if (o->prompt_size + 65536 > room) {
            char *grown = realloc(o->prompt, room += room / 2 + 131072);

            if (!grown || room > (size_t)1 << 30) {
                o->prompt = grown ? grown : o->prompt;
                if (!is_stdin)
                    fclose(f);
                return EK_FAIL(err, EK_EASKED, "%s: the prompt is too long", o->prompt_file);
            }
            o->prompt = grown;
        }
        got = fread(o->prompt + o->prompt_size, 1, 65536, f);
        o->prompt_size += got;
    } while (got > 0);
    if (ferror(f)) {
        const int e = errno;

        if (!is_stdin)
            fclose(f);
        return EK_FAIL(err, e == EISDIR ? EK_EASKED : EK_EIO, "%s: cannot read: %s", o->prompt_file,
                       strerror(e));
    }
    if (!is_stdin)
        fclose(f);
    return EK_OK;
}

/* *help: 1 if help was asked for. */
static ek_code read_options(int argc, char **argv, options *o, int *help, ek_err *err)
{
    int which, at = 0;

    *o = (options){.policy = "full", .max_new = 256, .sampling = ek_sampling_greedy};
    *help = 0;
    optind = 1;
    opterr = 0;
    while ((which = getopt_long(argc, argv, ":", long_options, &at)) != -1) {
        if (which == OPT_HELP) {
            *help = 1;
            return EK_OK;
        }
        if (which == '?' || which == ':')
            return which == ':'
                       ? EK_FAIL(err, EK_EASKED, "generate: '%s' needs a value", argv[optind - 1])
                       : unknown_option(argv[optind - 1], err);
        EK_TRY(read_option(o, which, long_options[at].name, optarg, err));
    }
    if (!o->model)
        return EK_FAIL(err, EK_EASKED, "generate: --model FILE.gguf is needed");
    if (o->keep && o->entries)
        return EK_FAIL(err, EK_EASKED, "generate: found --keep and --entries, expected one");
    if (o->prompt_file ? optind != argc : optind != argc - 1)
        return EK_FAIL(err, EK_EASKED, "generate: expected one PROMPT, or --prompt-file FILE");
    if (o->prompt_file)
        return read_file(o, err);
    o->prompt = strdup(argv[optind]);
    if (!o->prompt)
        return EK_FAIL(err, EK_ENOMEM, "no memory for the prompt");
    o->prompt_size = strlen(o->prompt);
    return EK_OK;
}

/* ---- policy ---- */

/* "snapkv:window=32,pool=max" as the YAML a run would hold, so that its checks and messages serve.
 */
static ek_code read_spec(const char *spec, ek_method_set *set, ek_err *err)
{
    ek_text yaml = {0};
    const char *s = strchr(spec, ':');
    const size_t name = s ? (size_t)(s - spec) : strlen(spec);
    ek_code code;

    ek_text_add(&yaml, "name: ");
    ek_text_json(&yaml, spec, name);
    ek_text_add(&yaml, "\n");
    while (s && s[1]) {
        const char *key = s + 1, *equals = strchr(key, '='), *end = strchr(key, ',');

        if (!end)
            end = key + strlen(key);
        if (!equals || equals >= end || equals == key) {
            ek_text_clear(&yaml);
            return EK_FAIL(err, EK_EASKED, "--policy: found \"%.*s\", expected key=value",
                           (int)(end - key), key);
        }
        ek_text_add(&yaml, "%.*s: %.*s\n", (int)(equals - key), key, (int)(end - equals - 1),
                    equals + 1);
        s = *end ? end : NULL;
    }
    if (yaml.failed) {
        ek_text_clear(&yaml);
        return EK_FAIL(err, EK_ENOMEM, "no memory for --policy");
    }
    *set = ek_method_set_defaults;
    code = ek_config_parse(set, ek_method_fields, yaml.data, yaml.size, "--policy", NULL, 0, err);
    ek_text_clear(&yaml);
    return code;
}

static ek_code open_policy(session *s, const options *o, ek_err *err)
{
    ek_policy *p = &s->policy;
    const ek_scorer_class *signal;
    ek_method_set set;

    EK_TRY(read_spec(o->policy, &s->set, err));
    EK_TRY(ek_method_open(&p->method, &s->set, err));
    signal = p->method.measure.signal;
    p->decode = o->decode;
    if (o->keep)
        EK_TRY(ek_budget_keep(&p->budget, o->keep, err));
    p->budget.entries = o->entries;
    if (signal->source == EK_FROM_FUTURE)
        return EK_FAIL(err, EK_EASKED,
                       "--policy: %s looks at the true future; only evaluate can run it",
                       p->method.name);
    if (!o->keep && !o->entries && p->method.when.prefill_end + p->method.when.first_step > 0)
        return EK_FAIL(err, EK_EASKED, "--policy: %s needs --keep or --entries", p->method.name);
    set = s->set;
    if (o->weights)
        set.weights = (char *)o->weights; /* read only; s->set owns what is its own */
    if (signal->learner && !set.weights)
        return EK_FAIL(err, EK_EASKED,
                       "--policy: %s is learned: --weights DIR of a trained scorer is needed",
                       p->method.name);
    if (set.weights && !signal->learner)
        return EK_FAIL(err, EK_EASKED, "--weights: %s is not learned and takes none",
                       p->method.name);
    return ek_grid_method(&p->method, &s->scorer, &s->weights, &s->maps, &set, p->decode, set.seed,
                          s->model, ek_tokenizer_hash(s->tok), s->dev, err);
}

/* ---- the run ---- */

static ek_code encode(session *s, const options *o, ek_err *err)
{
    const ek_prompt whole = {.context = o->prompt, .context_size = o->prompt_size, .question = ""};
    int64_t question;

    if (o->raw)
        return ek_tokenizer_encode(s->tok, o->prompt, o->prompt_size, EK_TOK_BOS, &s->prompt, err);
    EK_TRY(ek_template_open(&s->template, ek_model_gguf(s->model), err));
    return ek_template_encode(&s->template, s->tok, &whole, 0, &s->prompt, &question, err);
}

static ek_code open_session(session *s, const options *o, ek_err *err)
{
    const ek_dims *d;

    EK_TRY(ek_cmd_device(&s->dev, err));
    EK_TRY(ek_model_open(&s->model, o->model, s->dev, o->storage, err));
    d = ek_model_dims(s->model);
    EK_TRY(ek_tokenizer_open(&s->tok, ek_model_gguf(s->model), err));
    EK_TRY(open_policy(s, o, err));
    EK_TRY(encode(s, o, err));
    if (s->prompt.n == 0)
        return EK_FAIL(err, EK_EASKED, "generate: the prompt is empty");
    EK_TRY(ek_engine_open(&s->engine, s->model, s->dev, err));
    EK_TRY(ek_sampler_open(&s->sampler, &o->sampling, d->n_vocab, err));
    s->logits = malloc(2 * sizeof *s->logits * (size_t)d->n_vocab);
    if (!s->logits)
        return EK_FAIL(err, EK_ENOMEM, "no memory for logits");
    s->prompt_logits = s->logits + d->n_vocab;
    return EK_OK;
}

/* Read the prompt and cut it down. */
static ek_code prefill(session *s, const options *o, int *max_new, ek_err *err)
{
    const ek_dims *d = ek_model_dims(s->model);
    const ek_measure *m = &s->policy.method.measure;
    const int n = s->prompt.n <= d->n_ctx ? (int)s->prompt.n : d->n_ctx + 1;
    const int lanes = ek_measure_n_carry(m, d->group) > 0;
    ek_cache_need need = {.dims = *d, .dtype = o->storage, .n_lanes = lanes, .measures = &m};

    if (n > d->n_ctx)
        return EK_FAIL(err, EK_EASKED,
                       "generate: found a prompt of %lld tokens, expected at most the model's "
                       "context of %d",
                       (long long)s->prompt.n, d->n_ctx);
    *max_new = o->max_new < d->n_ctx - n ? (int)o->max_new : d->n_ctx - n;
    need.cap = n + *max_new;
    EK_TRY(ek_cache_open(&s->cache, &need, s->dev, err));
    EK_TRY(ek_engine_read(s->engine, &s->cache, s->prompt.id, n, n, s->prompt_logits, NULL, err));
    memcpy(s->logits, s->prompt_logits, sizeof *s->logits * (size_t)d->n_vocab);
    if (o->save_plan && s->policy.method.when.prefill_end)
        EK_TRY(ek_saved_plan_scores(&s->plan, &s->cache, lanes ? 0 : -1, &s->policy, err));
    EK_TRY(ek_row_open(&s->row, s->engine, &s->cache, &s->policy, n, *max_new, EK_ROW_TAKE, err));
    s->plan.ids = s->prompt.id;
    s->plan.n_ids = n;
    s->plan.logits = s->prompt_logits;
    s->plan.n_vocab = d->n_vocab;
    return EK_OK;
}

/* Write what is whole UTF-8; hold back an unfinished character, unless this is the end. */
static void show(session *s, int end)
{
    const char *from = s->text.data ? s->text.data + s->shown : "";
    const size_t size = s->text.size - s->shown, whole = end ? size : ek_utf8_whole(from, size);
    ek_text clean = {0};

    if (whole == 0)
        return;
    ek_utf8_repair(&clean, from, whole);
    fwrite(clean.data, 1, clean.size, stdout);
    fflush(stdout);
    ek_text_clear(&clean);
    s->shown += whole;
}

/* What the first plan kept; a method that cuts at the first step has done so now.  Its scores are
 * those of the survivors; where no plan can follow, their measure went with the cut. */
static ek_code keep_plan(session *s, ek_err *err)
{
    const int carry = ek_measure_n_carry(&s->policy.method.measure, ek_model_dims(s->model)->group);

    if (s->plan.kept_count)
        return EK_OK;
    if (!s->plan.score && s->row.policy && (carry == 0 || s->row.cache.n_lanes > 0))
        EK_TRY(ek_saved_plan_scores(&s->plan, &s->row.cache, s->row.cache.n_lanes ? 0 : -1,
                                    &s->policy, err));
    return ek_saved_plan_kept(&s->plan, &s->row.cache, err);
}

static ek_code decode(session *s, const options *o, int max_new, ek_err *err)
{
    ek_row *row = &s->row;
    int32_t id = 0;
    double start;

    if (o->save_plan && !(row->policy && s->policy.method.when.first_step))
        EK_TRY(keep_plan(s, err));
    while (s->n_new < max_new && !ek_stop_asked()) {
        EK_TRY(ek_sampler_pick(&s->sampler, s->logits, s->n_new, &id, err));
        if (ek_tokenizer_is_end(s->tok, id))
            break;
        EK_TRY(ek_tokenizer_decode(s->tok, &id, 1, 1, &s->text, err));
        show(s, 0);
        s->n_new++;
        if (s->n_new == max_new && !(o->save_plan && !s->plan.kept_count))
            break; /* nobody will read the logits behind the last token */
        row->feed = &id;
        row->n_feed = row->n_logits = row->counts = 1;
        row->logits = s->logits;
        start = ek_now();
        EK_TRY(ek_engine_step(s->engine, &row, 1, err));
        s->decode_s += ek_now() - start;
        if (o->save_plan)
            EK_TRY(keep_plan(s, err));
    }
    show(s, 1);
    printf("\n");
    return o->save_plan ? keep_plan(s, err) : EK_OK;
}

static void summary(const session *s, double prefill_s)
{
    const ek_row *r = &s->row;
    const ek_cache_bytes b = ek_cache_count(&r->cache);
    const ek_dims *d = ek_model_dims(s->model);
    const int64_t heads = (int64_t)d->n_layers * d->n_heads;
    const int64_t full = (int64_t)r->cache.next_pos * heads *
                         (2 * (int64_t)d->head_dim * ek_dtype_size(r->cache.dtype) + 4);

    fprintf(stderr, "prompt    %lld tokens, %.0f tok/s\n", (long long)s->prompt.n,
            (double)s->prompt.n / prefill_s);
    if (r->policy)
        fprintf(stderr,
                "kept      %d asked per head%s, %d .. %d held after the last of %d plans (%s)\n",
                r->kept_asked, r->policy->method.budget == EK_SHARE_UNIFORM ? "" : " on average",
                r->kept_min, r->kept_max, r->planned, s->policy.method.name);
    fprintf(stderr,
            "cache     %.2f MB now (full cache %.2f MB): %.1f entries per head for %d tokens; "
            "%.2f MB allocated\n",
            (double)(b.kv + b.pos + r->state_bytes) / 1e6, (double)full / 1e6,
            (double)ek_cache_entries(&r->cache) / (double)heads, r->cache.next_pos,
            (double)b.block / 1e6);
    if (ek_cache_mapped(&r->cache) > 0)
        fprintf(stderr, "vector    %.1f more entries per head without values; maps of %.2f MB\n",
                (double)ek_cache_mapped(&r->cache) / (double)heads,
                (double)ek_maps_bytes(&s->maps) / 1e6);
    if (r->step > 0)
        fprintf(stderr, "generated %lld tokens, %.1f tok/s, %.2f %% of it scoring\n",
                (long long)s->n_new, (double)r->step / s->decode_s,
                1e-7 * (double)r->score_ns / s->decode_s);
}

static ek_code generate(session *s, const options *o, ek_err *err)
{
    double prefill_s;
    int max_new = 0;

    EK_TRY(open_session(s, o, err));
    prefill_s = ek_now();
    EK_TRY(prefill(s, o, &max_new, err));
    prefill_s = ek_now() - prefill_s;
    s->row.score_ns = 0; /* of decoding only, from here on */
    EK_TRY(decode(s, o, max_new, err));
    if (o->save_plan)
        EK_TRY(ek_saved_plan_write(&s->plan, o->save_plan, ek_model_dims(s->model),
                                   s->policy.method.name, ek_model_hash(s->model),
                                   s->row.kept_asked, err));
    if (max_new < o->max_new && s->n_new == max_new)
        fprintf(stderr, "stopped   at the model's context of %d tokens\n",
                ek_model_dims(s->model)->n_ctx);
    summary(s, prefill_s);
    return ek_stop_asked() ? EK_FAIL(err, EK_ESTOPPED, "generate: stopped") : EK_OK;
}

static void close_session(session *s)
{
    ek_saved_plan_clear(&s->plan);
    ek_text_clear(&s->text);
    ek_row_close(&s->row);
    ek_cache_close(&s->cache);
    ek_sampler_close(&s->sampler);
    ek_engine_close(s->engine);
    ek_weights_close(s->weights);
    ek_maps_close(&s->maps);
    ek_template_clear(&s->template);
    ek_tokens_clear(&s->prompt);
    ek_tokenizer_close(s->tok);
    ek_model_close(s->model);
    ek_config_clear(&s->set, ek_method_fields);
    free(s->logits);
    if (s->dev)
        ek_device_close(s->dev);
}

int ek_cmd_generate(int argc, char **argv)
{
    session s = {0};
    options o;
    ek_err err = {0};
    int help = 0;
    ek_code code = read_options(argc, argv, &o, &help, &err);

    if (help) {
        fputs(usage_text, stdout);
        free(o.prompt);
        return 0;
    }
    if (code == EK_OK)
        code = generate(&s, &o, &err);
    close_session(&s);
    free(o.prompt);
    return code == EK_OK ? 0 : ek_cmd_fail(&err);
}
