/*
 * For C tests: pages with addresses that stay unmapped after the program unmaps them. The kernel gives freed
 * addresses near its other mappings to the next mapping, such as one of the C library's allocator.
 */
#include <stdint.h>
#include <sys/mman.h>

#include "check.h"

#define SIZE 16384

/* Maps SIZE bytes far below the addresses that the kernel chooses. */
static char *pages(void)
{
	static uintptr_t next = 0x100000000000;
	char *at = mmap((void *)next, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at == (void *)next);
	next += 2 * SIZE;
	return at;
}
