/* ud_burst: more datagrams than receives; the program waits for all of them and fails */
#include "ud.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	static struct datagrams d;
	int count;

	open_datagrams(&d);
	for (int i = 0; i < EITHER(2, 6); i++) {
		receive = receive_to(part(&d, 1024 + 128 * i, 128));
		CHECK(ibv_post_recv(d.qp[1], &receive, &bad) == 0); /* finds: datagram-dropped */
	}
	for (int i = 0; i < 6; i++)
		send_datagram(&d, 64);
	count = received(&d);
	close_datagrams(&d);
	return count == 6 ? 0 : 1;
}
