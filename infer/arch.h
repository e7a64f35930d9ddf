/* infer/arch.h - one row per architecture: what of its metadata and tensors we can run.
 *
 * A file is refused by name if it asks for something the forward pass does not do: an unknown
 * architecture, a rotary scaling, a sliding window, a tensor we would leave unread. */
#ifndef EK_INFER_ARCH_H
#define EK_INFER_ARCH_H

#include "core/view.h"
#include "infer/gguf.h"

/* Sizes from the metadata, checked against each other and against the tensors' names.
 * EK_ENOTSUP: a valid model that we cannot run; EK_EINPUT: a damaged one. */
ek_code ek_arch_dims(const ek_gguf *g, ek_dims *out, ek_err *err);

/* The architectures, NULL-terminated, for lists and messages. */
extern const char *const ek_arch_names[];

#endif
