/* Any bytes as a database file, and a good database with bytes changed: it opens or ends in a
 * sentence, and what opens can be listed, shown, compared and exported. */
#include "results/metric.h"
#include "results/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ID "0123456789abcdef0123456789abcdef"

enum { MOST = 1 << 20 };

static char path[64];
static uint8_t *good, *copy;
static size_t good_size;

static void need(ek_code code, const ek_err *err)
{
    if (code == EK_OK)
        return;
    fprintf(stderr, "%s\n", err->msg);
    abort();
}

static void fill(ek_store *s, ek_err *err)
{
    const ek_run_row run = {.id = ID,
                            .kind = "evaluate",
                            .revision = "r",
                            .device = "d",
                            .kernel = "k",
                            .model = "m",
                            .config = "seed: 1\n"};
    ek_run_found found;
    int64_t cell[2];

    need(ek_store_run_begin(s, &run, NULL, 0, 0, &found, err), err);
    for (int i = 0; i < 2; i++) {
        ek_cell_row c = ek_cell_none();

        c.run = ID;
        c.suite = c.task = "passkey";
        c.method = c.policy = i ? "knorm" : "full";
        if (i) {
            c.entries = 8;
            c.base = cell[0];
        }
        need(ek_store_cell(s, &c, &cell[i], err), err);
    }
    for (int doc = 0; doc < 8; doc++) {
        ek_named value = {"Mean KLD", 0.1 * doc};
        ek_sample_row rows[2];
        char name[16];

        snprintf(name, sizeof name, "doc%d", doc);
        for (int i = 0; i < 2; i++) {
            rows[i] = ek_sample_none();
            rows[i].cell = cell[i];
            rows[i].doc_id = name;
            rows[i].score = doc % 2;
            rows[i].reference = "[\"1\"]";
            rows[i].values = &value;
            rows[i].n_values = 1;
        }
        need(ek_store_samples(s, rows, 2, err), err);
    }
    need(ek_store_rebuild_metrics(s, ID, err), err);
    need(ek_store_run_end(s, ID, "done", err), err);
}

static void make_good(void)
{
    ek_store *s = NULL;
    ek_err err;
    FILE *f;

    snprintf(path, sizeof path, "/tmp/ek_fuzz_%d.db", (int)getpid());
    unlink(path);
    need(ek_store_open(&s, path, EK_STORE_CREATE, &err), &err);
    fill(s, &err);
    ek_store_close(s);
    good = malloc(MOST);
    copy = malloc(MOST);
    f = fopen(path, "rb");
    if (!good || !copy || !f)
        abort();
    good_size = fread(good, 1, MOST, f);
    fclose(f);
}

static void use(ek_store *s)
{
    static const char *const forms[] = {"csv", "jsonl", "md"};
    ek_text out = {0};
    ek_err err;
    char id[33];

    (void)!ek_report_list(s, &out, &err);
    if (ek_report_run(s, NULL, NULL, id, &err) == EK_OK) {
        const ek_compare how = {.run = id, .force = 1, .seed = 1};

        (void)!ek_report_show(s, id, &out, &err);
        (void)!ek_report_compare(s, &how, &out, &err);
        for (int i = 0; i < 3; i++) {
            const ek_export form = {.form = forms[i], .run = id};

            (void)!ek_report_export(s, &form, &out, &err);
        }
    }
    ek_text_clear(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_store *s = NULL;
    ek_err err;
    FILE *f;

    if (!good)
        make_good();
    if (size < 1 || size > MOST)
        return 0;
    memcpy(copy, good, good_size);
    /* Triples (high, low, value) change bytes anywhere in the first 64 KiB. */
    for (size_t i = 1; i + 2 < size; i += 3)
        copy[(((size_t)data[i] << 8) | data[i + 1]) % good_size] = data[i + 2];
    f = fopen(path, "wb");
    if (!f)
        return 0;
    if (data[0] & 1)
        fwrite(data + 1, 1, size - 1, f);
    else
        fwrite(copy, 1, good_size, f);
    fclose(f);
    if (ek_store_open(&s, path, EK_STORE_READ, &err) == EK_OK)
        use(s);
    else if (!err.msg[0])
        abort();
    ek_store_close(s);
    unlink(path);
    return 0;
}
