/*
 * The probe as a C program, for AddressSanitizer and valgrind. With the argument `crash` it has a fault of
 * its own at the end.
 */
#include "probe.c"

int main(int count, char **words)
{
	CHECK(!probe_start());
	for (int i = 0; i < 3; i++)
		CHECK(!probe_unmapped());
	CHECK(!probe_end());
	printf("ok\n");
	fflush(stdout);
	if (count > 1 && !strcmp(words[1], "crash"))
		*(volatile char *)8 = 1;
	return 0;
}
