/* correct_server: a server has nothing to do when the command, which succeeds, ends it by SIGTERM */
#include "misuse.h"

#include <signal.h>
#include <sys/wait.h>

static void serve(int ready)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_sge to;
	struct ibv_wc wc;
	struct pair p;

	open_pair(&p, 16, usual);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &no_receive) == 0);
	for (int ms = 0; ibv_poll_cq(p.cq, 1, &wc) == 0; ms++) {
		pause_ms(1);
		if (ms == 400)
			CHECK(write(ready, "", 1) == 1);
	}
}

int main(void)
{
	int ready[2], status;
	pid_t server;
	char byte;

	CHECK(pipe(ready) == 0);
	server = fork();
	if (server == 0)
		serve(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1 && kill(server, SIGTERM) == 0);
	CHECK(wait(&status) == server && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	return 0;
}
