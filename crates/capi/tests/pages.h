/*
 * For C tests: pages whose addresses stay unmapped after the program unmaps them. The kernel places mappings
 * of the C library's allocator close to each other, from a freed address on.
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
