/* race_ud: a datagram is placed in memory that WRITEs change; options: --races */
#include "race.h"

static struct ibv_qp *datagrams;
static uint32_t *numbers;

static void send_datagram(struct end *e)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(e, &sge, IBV_WR_SEND, SIGNALED, 0, 0, 16), *bad;
	struct ibv_ah_attr attr = own_address(e->context);
	struct ibv_ah *ah = ibv_create_ah(e->pd, &attr);

	CHECK(ah != NULL);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = *numbers;
	wr.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_send(datagrams, &wr, &bad) == 0); /* finds: race-remote */
	poll_good(e, BURST + 1);
	CHECK(ibv_destroy_ah(ah) == 0);
}

/* With -DFIXED the receive has memory of its own. */
static void run(struct end *e, int role)
{
	struct ibv_sge sge = { (uintptr_t)e->memory + RECEIVE, 64, e->mr->lkey };
	struct ibv_recv_wr wr = receive_to(&sge), *bad;

	datagrams = ready_ud(e->pd, e->cq);
	if (role == TARGET)
		*numbers = datagrams->qp_num;
	for (int i = 0; i < ROUNDS; i++) {
		if (role == TARGET)
			CHECK(ibv_post_recv(datagrams, &wr, &bad) == 0);
		meet(3 + 2 * i);
		if (role != TARGET) {
			for (int k = 0; k < BURST; k++)
				post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, IS_FIXED ? RECEIVE : SIZE);
			send_datagram(e);
		} else {
			poll_good(e, 1);
		}
		meet(4 + 2 * i);
	}
	CHECK(ibv_destroy_qp(datagrams) == 0);
}

int main(void)
{
	numbers = mmap(NULL, sizeof(*numbers), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(numbers != MAP_FAILED);
	return run_all(1, run);
}
