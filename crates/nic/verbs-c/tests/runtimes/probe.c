/*
 * A library for programs in other languages: `probe_start` opens the device, `probe_unmapped` lets the device
 * write to memory that was unmapped, and returns 0 if the transfer failed as it must.
 */
#include "../pair.h"
#include <sys/mman.h>

#define SIZE 16384

static struct pair the_pair;

int probe_start(void)
{
	open_device();
	make(&the_pair);
	return 0;
}

int probe_unmapped(void)
{
	char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)at, mr ? mr->rkey : 0 } };
	/* The place stays reserved: another thread of the program could map memory there. */
	CHECK(mr && mmap(at, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	CHECK(posted(&the_pair, the_pair.a, &wr) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(mr) && !munmap(at, SIZE));
	return 0;
}

/* For Java: static native methods of the class Probe. */
int Java_Probe_start(void *env, void *class)
{
	(void)env, (void)class;
	return probe_start();
}

int Java_Probe_unmapped(void *env, void *class)
{
	(void)env, (void)class;
	return probe_unmapped();
}

int probe_end(void)
{
	unmake(&the_pair);
	close_device();
	return 0;
}
