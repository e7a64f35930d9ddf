/* train/dialog.c - the three seams of a conversation, taken from the rendered template.  (A file of
 * its own because a template's turn and a retrieval item's turn are different things of one name.)
 */
#include "train/dialog.h"

#include "infer/template.h"

#include <stdlib.h>
#include <string.h>

static ek_code plain(ek_dialog *out, ek_err *err)
{
    *out = (ek_dialog){strdup(""), strdup("\n\n"), strdup("\n\n"), ""};
    if (out->open == NULL || out->close == NULL || out->next == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a dialog");
    return EK_OK;
}

ek_code ek_dialog_open(ek_dialog *out, const ek_gguf *g, ek_err *err)
{
    ek_text before = {0}, after = {0}, again = {0}, unused = {0}, next = {0};
    ek_template t;

    if (ek_template_open(&t, g, err) != EK_OK)
        return err->code == EK_ENOTSUP ? plain(out, err) : err->code;
    EK_CHECK(ek_template_wrap(&t, NULL, &before, &after, err));
    EK_CHECK(ek_template_wrap(&t, "", &again, &unused, err));
    /* The end of a turn is the first line of what follows a user's text. */
    const char *line = after.data != NULL ? strchr(after.data, '\n') : NULL;
    ek_text_add(&next, "%.*s%s", line ? (int)(line - after.data) + 1 : 0,
                after.data ? after.data : "", again.data ? again.data : "");
    *out = (ek_dialog){.open = strdup(before.data ? before.data : ""),
                       .close = strdup(after.data ? after.data : ""),
                       .next = strdup(next.data ? next.data : "")};
    memcpy(out->hash, t.hash, sizeof out->hash);
    if (next.failed || out->open == NULL || out->close == NULL || out->next == NULL) {
        ek_dialog_close(out);
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "a dialog"));
    }
    err->code = EK_OK;
fail:
    ek_template_clear(&t);
    ek_text_clear(&before);
    ek_text_clear(&after);
    ek_text_clear(&again);
    ek_text_clear(&unused);
    ek_text_clear(&next);
    return err->code;
}

void ek_dialog_close(ek_dialog *d)
{
    free(d->open);
    free(d->close);
    free(d->next);
    *d = (ek_dialog){0};
}
