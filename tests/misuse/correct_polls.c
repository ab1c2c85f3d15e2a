/* correct_polls: a thread polls the last byte of a WRITE, which is a finding with --strict only */

/* options: --pages=targets,shared */
#include "target_polled.c"
