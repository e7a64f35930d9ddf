/* commands.h - the subcommands.  Each parses its own arguments (argv[0] is its name), delegates,
 * and returns the process's exit status: 0 done, 1 the work failed, 2 the request was wrong, 130
 * stopped by the user with everything finished so far stored. */
#ifndef EK_COMMANDS_H
#define EK_COMMANDS_H

#include "core/device.h"
#include "core/err.h"

#ifndef EK_VERSION
#define EK_VERSION "0.1.0"
#endif
#ifndef EK_REVISION
#define EK_REVISION "unknown"
#endif

int ek_cmd_train(int argc, char **argv);
int ek_cmd_evaluate(int argc, char **argv);
int ek_cmd_results(int argc, char **argv);
int ek_cmd_generate(int argc, char **argv);
int ek_cmd_bench(int argc, char **argv);
int ek_cmd_list(int argc, char **argv);
int ek_cmd_doctor(int argc, char **argv);

/* "evictkit: MESSAGE" on stderr; returns the exit status of err. */
int ek_cmd_fail(const ek_err *err);

/* The device every command works on: the CPU, capped by EVICTKIT_ISA. */
ek_code ek_cmd_device(ek_device **out, ek_err *err);

#endif
