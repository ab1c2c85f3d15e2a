/* remote_parent: the memory is not mapped any more; queue pair and region have one domain, by its parent */
#include "misuse.h"

#include <sys/mman.h>

int main(void)
{
	struct ibv_parent_domain_init_attr attr = { 0 };
	struct ibv_send_wr send, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_pd *parent;
	struct ibv_sge from;
	struct ibv_mr *mr;
	struct pair p;
	void *memory;

	make_pair(&p, 16);
	attr.pd = p.pd;
	parent = ibv_alloc_parent_domain(p.context, &attr);
	init = qp_attr(p.cq, IBV_QPT_RC);
	CHECK(parent != NULL && ibv_destroy_qp(p.qp[1]) == 0);
	p.qp[1] = ibv_create_qp(parent, &init);
	init_qp(p.qp[1]);
	for (int side = 0; side < 2; side++)
		connect_qp(p.qp[side], p.qp[1 - side]->qp_num, usual);
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = ibv_reg_mr(p.pd, memory, SIZE, ALL_ACCESS);
	CHECK(mr != NULL);
	if (EITHER(1, 0))
		CHECK(munmap(memory, SIZE) == 0);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.wr.rdma.remote_addr = (uintptr_t)memory;
	send.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: remote-access */
	wait_for(p.cq, 1);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_qp(p.qp[1]) == 0 && ibv_dealloc_pd(parent) == 0);
	p.qp[1] = NULL;
	close_pair(&p);
	return 0;
}
