/* scorers/list.h - the methods, in the order `evictkit list` prints them.  A word here and a file
 * scorers/<word>.c that defines ek_method_<word> add a method. */
#ifndef EK_SCORERS_LIST_H
#define EK_SCORERS_LIST_H

/* clang-format off */
#define EK_METHODS(X) \
    X(full) X(random) X(recency) X(streaming) X(knorm) X(keydiff) X(tova) X(h2o) X(snapkv) \
    X(inertiakv) X(inertiakv_lazy) X(scorefree) X(oracle) X(kvpop) X(foresight)
/* clang-format on */

#endif
