/* correct_size_search: looks for the most entries and places, and keeps the last that it got */
#include "misuse.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static int grow_cq(int entries)
{
	struct ibv_cq *larger = ibv_create_cq(context, entries, NULL, NULL, 0);

	if (larger == NULL)
		return 0;
	CHECK(cq == NULL || ibv_destroy_cq(cq) == 0);
	cq = larger;
	return 1;
}

static int grow_qp(uint32_t places)
{
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *larger;

	init.cap.max_send_wr = places;
	larger = ibv_create_qp(pd, &init);
	if (larger == NULL)
		return 0;
	CHECK(qp == NULL || ibv_destroy_qp(qp) == 0);
	qp = larger;
	return 1;
}

int main(void)
{
	context = open_first();
	pd = ibv_alloc_pd(context);
	for (int entries = 1024; grow_cq(entries); entries *= 8)
		;
	for (uint32_t places = 256; grow_qp(places); places *= 8)
		;
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
