/* For C tests: prints the first wrong answer and ends the program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(c)                                                                                                  \
	do {                                                                                                       \
		if (!(c)) {                                                                                        \
			printf("line %d: %s (errno %d)\n", __LINE__, #c, errno);                                   \
			exit(1);                                                                                   \
		}                                                                                                  \
	} while (0)
