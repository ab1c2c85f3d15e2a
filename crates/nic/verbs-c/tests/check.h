/* For C tests: CHECK prints the first false condition and ends the program with exit status 1. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(c)                                                           \
	do {                                                               \
		if (!(c)) {                                                \
			printf("line %d: %s (errno %d)\n", __LINE__, #c, errno); \
			exit(1);                                           \
		}                                                          \
	} while (0)
