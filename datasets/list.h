/* datasets/list.h - the tasks, in the order `evictkit list tasks` prints them. */
#ifndef EK_DATASETS_LIST_H
#define EK_DATASETS_LIST_H

#define EK_TASKS(X) X(fidelity) X(passkey) X(kv_needle) X(verbatim)

#endif
