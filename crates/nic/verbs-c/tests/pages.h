/*
 * For C tests: pages with addresses that stay unmapped after the program unmaps them. The kernel gives freed
 * addresses near its other mappings to the next mapping, such as one of the C library's allocator.
 */
#include <stdint.h>
#include <sys/mman.h>

#include "check.h"

#define SIZE 16384

/*
 * Maps SIZE bytes at 64 GiB and above. That is far below the addresses that the kernel chooses, also where an
 * address has 39 bits (aarch64 with pages of 4 KiB) or 38 (riscv64), and above programs with fixed addresses.
 */
static char *pages(void)
{
	static uintptr_t next = 0x1000000000;
	char *at = mmap((void *)next, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at == (void *)next);
	next += 2 * SIZE;
	return at;
}
