/* train/dialog.h - what a chat template writes around the turns of a training conversation. */
#ifndef EK_TRAIN_DIALOG_H
#define EK_TRAIN_DIALOG_H

#include "core/json.h"
#include "infer/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_dialog {
    char *open;  /* before the first user's text */
    char *close; /* between a user's text and the answer */
    char *next;  /* between an answer and the next user's text */
    char hash[33];
} ek_dialog;

/* A model without a template, or with one we do not know, gets blank lines between turns. */
ek_code ek_dialog_open(ek_dialog *out, const ek_gguf *g, ek_err *err);
void ek_dialog_close(ek_dialog *d);

#ifdef __cplusplus
}
#endif
#endif
