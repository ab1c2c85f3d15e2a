/* left: posts five WRITEs, polls two, and is killed after all have completed */
#include "../misuse/misuse.h"
#include <signal.h>

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;
	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	for (int i = 0; i < 5; i++)
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	wait_for(p.cq, 2);
	pause_ms(200);
	kill(getpid(), 9);
	return 0;
}
