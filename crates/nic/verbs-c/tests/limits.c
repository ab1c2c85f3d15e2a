/*
 * Exhausts the device: it gives as many objects of each kind as it reports, then ENOMEM, and another one
 * after one was destroyed. Sparse regions are registered without their pages. Exits 77 without a device.
 */
#include "pair.h"
#include <sys/mman.h>
#include <unistd.h>

static struct ibv_device_attr limits;
static struct ibv_cq *one_cq;

static void *make_pd(void)
{
	return ibv_alloc_pd(ctx);
}

static void *make_cq(void)
{
	return ibv_create_cq(ctx, 1, NULL, NULL, 0);
}

static void *make_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = one_cq, .recv_cq = one_cq, .qp_type = IBV_QPT_RC,
		.cap = { 1, 1, 1, 1, 0 } };
	return ibv_create_qp(pd, &init);
}

static void *make_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
	return ibv_create_srq(pd, &init);
}

static void *make_mr(void)
{
	return ibv_reg_mr(pd, buf, 64, IBV_ACCESS_LOCAL_WRITE);
}

static void *make_mw(void)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_1);
}

static void *make_ah(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } };
	return ibv_create_ah(pd, &attr);
}

static int free_pd(void *of) { return ibv_dealloc_pd(of); }
static int free_cq(void *of) { return ibv_destroy_cq(of); }
static int free_qp(void *of) { return ibv_destroy_qp(of); }
static int free_srq(void *of) { return ibv_destroy_srq(of); }
static int free_mr(void *of) { return ibv_dereg_mr(of); }
static int free_mw(void *of) { return ibv_dealloc_mw(of); }
static int free_ah(void *of) { return ibv_destroy_ah(of); }

/* So many of a kind are made. More of them only with ROXIE_TEST_FULL: a million queue pairs take 5 GiB. */
#define QUICK (1 << 17)

/* `used` of the `max` objects exist already. */
static void exhaust(const char *kind, int max, int used, void *(*make)(void), int (*destroy)(void *))
{
	CHECK(max > 1000 && max < 1 << 22);
	int exhausts = max <= QUICK || getenv("ROXIE_TEST_FULL"), most = exhausts ? max - used : QUICK, n = 0;
	void **all = calloc(most, sizeof(*all));
	CHECK(all);
	errno = 0;
	while (n < most && (all[n] = make()))
		n++;
	if (n != most || (exhausts && (make() || errno != ENOMEM))) {
		printf("%d of %d %s, errno %d\n", n + used, max, kind, errno);
		exit(1);
	}
	CHECK(!destroy(all[n / 2]) && (all[n / 2] = make()));
	CHECK(!exhausts || (!make() && errno == ENOMEM));
	while (n)
		CHECK(!destroy(all[--n]));
	free(all);
}

static long resident_pages(void)
{
	long total, resident;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld", &total, &resident) == 2);
	fclose(f);
	return resident;
}

static char *reserve(size_t size)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

static void sparse_regions(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	size_t sizes[] = { (size_t)1 << 30, (size_t)100 << 30 };
	struct pair p;
	make(&p);
	for (int i = 0; i < 2; i++) {
		long before = resident_pages();
		char *at = reserve(sizes[i]), *middle = at + sizes[i] / 2;
		struct ibv_mr *mr = ibv_reg_mr(pd, at, sizes[i], access);
		CHECK(mr && resident_pages() - before < 16384);
		struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
			.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)middle, mr->rkey } };
		memset(buf, 's', 8192);
		CHECK(!posted(&p, p.a, &wr) && middle[0] == 's' && middle[8191] == 's' && !middle[8192]);
		CHECK(!ibv_dereg_mr(mr));
		/* What the region may write must be writable, and all of it mapped. */
		CHECK(!mprotect(middle, 4096, PROT_READ));
		CHECK(!ibv_reg_mr(pd, at, sizes[i], access) && errno == EFAULT);
		CHECK((mr = ibv_reg_mr(pd, at, sizes[i], 0)) && !ibv_dereg_mr(mr));
		CHECK(!munmap(middle, 4096));
		CHECK(!ibv_reg_mr(pd, at, sizes[i], 0) && errno == EFAULT);
		CHECK(!munmap(at, sizes[i]));
	}
	unmake(&p);
}

int main(void)
{
	open_device();
	CHECK(!ibv_query_device(ctx, &limits));
	sparse_regions();
	exhaust("protection domains", limits.max_pd, 1, make_pd, free_pd);
	exhaust("completion queues", limits.max_cq, 0, make_cq, free_cq);
	exhaust("regions", limits.max_mr, 1, make_mr, free_mr);
	exhaust("windows", limits.max_mw, 0, make_mw, free_mw);
	exhaust("address handles", limits.max_ah, 0, make_ah, free_ah);
	exhaust("shared receive queues", limits.max_srq, 0, make_srq, free_srq);
	CHECK((one_cq = make_cq()));
	exhaust("queue pairs", limits.max_qp, 0, make_qp, free_qp);
	CHECK(!free_cq(one_cq));
	close_device();
	printf("ok\n");
	return 0;
}
