/*
 * correct_flags: the ends poll their memory for flags, and what they know orders WRITEs of two queue pairs;
 * options: --races
 */
#include "race.h"

#define FLAG 8192

static volatile char *flag(struct end *e)
{
	return e->memory + FLAG;
}

/* WRITEs the data, and then the flag through the same queue pair. */
static void tell(struct end *e, int qp, int i, int data_flags)
{
	e->memory[FLAG + 64] = (char)i;
	post(e, qp, IBV_WR_RDMA_WRITE, data_flags, 0, 0, 64);
	post(e, qp, IBV_WR_RDMA_WRITE, SIGNALED | IBV_SEND_INLINE, FLAG + 64, FLAG, 1);
}

/* Each end writes to the other one after it has seen the flag of it; no end polls before it writes. */
static void run(struct end *e, int role)
{
	int polled = 0;

	meet(3);
	for (int i = 1; i <= 100; i++) {
		if (role == TARGET)
			while (*flag(e) != (char)i)
				;
		tell(e, i % 2, i, 0);
		if (role != TARGET)
			while (*flag(e) != (char)i)
				;
		if (i % 8 == 0)
			for (; polled < i - 4; polled++)
				poll_good(e, 1);
	}
	poll_good(e, 100 - polled);
}

int main(void)
{
	return run_all(1, run);
}
