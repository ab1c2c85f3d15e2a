/* The pages of the C tests have addresses that no other mapping gets, in an address space of 39 bits too. */
#include <stdlib.h>

#include "../../crates/nic/verbs-c/tests/pages.h"

#define PAGES 64

int main(void)
{
	char *at[PAGES];
	for (int n = 0; n < PAGES; n++) {
		at[n] = pages();
		at[n][SIZE - 1] = 1;
		CHECK(!munmap(at[n], SIZE));
	}
	/* Mappings of the allocator and of the kernel's choice, from a page to 64 MiB. */
	for (int n = 0; n < 4 * PAGES; n++) {
		size_t length = (size_t)4096 << n % 15;
		char *by_kernel = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		char *by_malloc = malloc(length);
		CHECK(by_kernel != MAP_FAILED && by_malloc);
		for (int page = 0; page < PAGES; page++) {
			CHECK(by_kernel >= at[page] + SIZE || by_kernel + length <= at[page]);
			CHECK(by_malloc >= at[page] + SIZE || by_malloc + length <= at[page]);
		}
	}
	return 0;
}
