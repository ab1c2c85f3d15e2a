/* ud_above_mtu: a datagram longer than the MTU of the port: the device sends nothing, and says nothing */
#include "ud.h"

int main(void)
{
	static char memory[8192];
	struct ibv_send_wr send, *bad;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	static struct datagrams d;

	open_datagrams(&d);
	mr = ibv_reg_mr(d.pd, memory, sizeof(memory), 0);
	CHECK(mr != NULL);
	sge = (struct ibv_sge){ (uintptr_t)memory, EITHER(4097, 64), mr->lkey };
	send = send_of(&sge, IBV_WR_SEND);
	send.wr.ud.ah = d.ah;
	send.wr.ud.remote_qpn = d.qp[1]->qp_num;
	send.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_recv(d.qp[1], &(struct ibv_recv_wr){ .sg_list = part(&d, 0, 4096), .num_sge = 1 },
	                    &(struct ibv_recv_wr *){ NULL }) == 0);
	CHECK(ibv_post_send(d.qp[0], &send, &bad) == 0); /* finds: datagram-dropped */
	CHECK(wait_for(d.cq[0], 1) == IBV_WC_SUCCESS);
	received(&d);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_datagrams(&d);
	return 0;
}
