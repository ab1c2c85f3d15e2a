/* MUST(x): ends the program with the line and the errno if x does not hold. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)
