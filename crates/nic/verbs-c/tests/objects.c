/*
 * Device memory, imports within the process, buffers of the library, and the handles of objects. The newer
 * functions are looked up by name and version, because older headers and libraries lack them. Exits 77
 * without a device.
 */
#define _GNU_SOURCE
#include "pair.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAILS(e, call) CHECK((errno = 0, !(call)) && errno == (e))
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	IBV_ACCESS_REMOTE_ATOMIC)

/* As in rdma-core 64 and later. */
struct buffer;
struct mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct buffer *buf;
};
enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

static void *(*alloc_buf)(struct ibv_pd *, size_t, struct buffer **);
static void (*free_buf)(struct buffer *);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, struct buffer *, void *, size_t, int);
static int (*export_buf)(struct buffer *);
static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_attr *);
static int (*query_port_speed)(struct ibv_context *, uint32_t, uint64_t *);

static void *symbol(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);
	if (!found)
		printf("%s@%s is missing\n", name, version);
	CHECK(found);
	return found;
}

static void find_symbols(void)
{
	alloc_buf = symbol("ibv_alloc_buf", "IBVERBS_1.17");
	free_buf = symbol("ibv_free_buf", "IBVERBS_1.17");
	reg_buf_mr = symbol("ibv_reg_buf_mr", "IBVERBS_1.17");
	export_buf = symbol("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	reg_mr_ex = symbol("ibv_reg_mr_ex", "IBVERBS_1.15");
	query_port_speed = symbol("ibv_query_port_speed", "IBVERBS_1.16");
}

/* One request from buf[at] to `va`; returns the status. */
static enum ibv_wc_status rdma(struct pair *p, enum ibv_wr_opcode opcode, size_t at, uint32_t len,
			       uint32_t rkey, uint64_t va)
{
	struct ibv_sge sge = { (uintptr_t)buf + at, len, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { va, rkey } };
	return posted(p, p->a, &wr);
}

static void device_memory(struct pair *p)
{
	struct ibv_device_attr_ex attr;
	struct ibv_alloc_dm_attr init = { .length = 4096, .log_align_req = 12 };
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	char bytes[16] = "";

	CHECK(!ibv_query_device_ex(ctx, NULL, &attr) && attr.max_dm_size >= 1 << 20);
	CHECK((dm = ibv_alloc_dm(ctx, &init)) && dm->context == ctx && dm->handle);
	CHECK(!ibv_memcpy_to_dm(dm, 100, "device\0", 8) && !ibv_memcpy_from_dm(bytes, dm, 100, 8));
	CHECK(!strcmp(bytes, "device"));
	CHECK(ibv_memcpy_to_dm(dm, 4092, bytes, 8) == EINVAL && ibv_memcpy_from_dm(bytes, dm, 4096, 4) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 100, bytes, 7) == EINVAL && ibv_memcpy_from_dm(bytes, dm, 101, 4) == EINVAL);
	init.length = attr.max_dm_size;
	FAILS(ENOMEM, ibv_alloc_dm(ctx, &init));
	init.comp_mask = 1;
	FAILS(EOPNOTSUPP, ibv_alloc_dm(ctx, &init));

	/* A region of it is zero-based; peers and work requests reach it. */
	FAILS(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 4096, ALL_ACCESS));
	FAILS(EINVAL, ibv_reg_dm_mr(pd, dm, 1, 4096, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	CHECK((mr = ibv_reg_dm_mr(pd, dm, 96, 1000, ALL_ACCESS | IBV_ACCESS_ZERO_BASED)));
	CHECK(!mr->addr && mr->length == 1000);
	CHECK(ibv_free_dm(dm) == EBUSY);
	CHECK(!rdma(p, IBV_WR_RDMA_READ, 0, 7, mr->rkey, 4) && !strcmp(buf, "device"));
	strcpy(buf, "remote");
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 7, mr->rkey, 993));
	CHECK(rdma(p, IBV_WR_RDMA_WRITE, 0, 7, mr->rkey, 994) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_memcpy_from_dm(bytes, dm, 96 + 992, 8) && !strcmp(bytes + 1, "remote"));
	struct ibv_sge sge = { 993, 7, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buf + 512, buf_mr->rkey } };
	CHECK(!posted(p, p->a, &wr) && !strcmp(buf + 512, "remote"));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buf, 64, 0) < 0);
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm));
}

static void imports(struct pair *p)
{
	struct ibv_alloc_dm_attr init = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &init), *other_dm;
	struct ibv_context *other, *unrelated;
	struct ibv_pd *other_pd, *unrelated_pd;
	struct ibv_mr *mr, *again;
	char bytes[4];
	int fd = dup(ctx->cmd_fd), file = open("/dev/null", O_RDWR);

	CHECK(dm && fd >= 0 && file >= 0);
	FAILS(EINVAL, ibv_import_device(file));
	FAILS(EBADF, ibv_import_device(-1));
	CHECK((other = ibv_import_device(fd)) && other != ctx && other->cmd_fd == fd);
	CHECK((unrelated = ibv_open_device(ctx->device)) && (unrelated_pd = ibv_alloc_pd(unrelated)));

	/* Handles count only with a descriptor of their context, and only for their kind. */
	FAILS(ENOENT, ibv_import_pd(other, 0xdeadbeef));
	FAILS(ENOENT, ibv_import_pd(other, buf_mr->handle));
	FAILS(ENOENT, ibv_import_pd(unrelated, pd->handle));
	FAILS(ENOENT, ibv_import_pd(other, unrelated_pd->handle));
	CHECK((other_pd = ibv_import_pd(other, pd->handle)));
	CHECK(other_pd != pd && other_pd->context == other && other_pd->handle == pd->handle);
	FAILS(ENOENT, ibv_import_mr(other_pd, 0xdeadbeef));
	FAILS(ENOENT, ibv_import_mr(other_pd, pd->handle));
	FAILS(ENOENT, ibv_import_mr(unrelated_pd, buf_mr->handle));
	CHECK((mr = ibv_import_mr(other_pd, buf_mr->handle)) && mr->rkey == buf_mr->rkey);
	CHECK(mr->lkey == buf_mr->lkey && !mr->addr && mr->length == sizeof(buf) && mr->pd == other_pd);

	/* A queue pair of the imported domain uses keys of the original. */
	struct ibv_cq *cq = ibv_create_cq(other, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr qp_init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(other_pd, &qp_init);
	struct pair shared = { p->cq, p->a, qp };
	CHECK(cq && qp && ibv_dealloc_pd(pd) == EBUSY);
	renew(p);
	CHECK(!ibv_destroy_qp(p->a) && !ibv_destroy_qp(p->b));
	make_qps(&shared);
	p->a = shared.a;
	p->b = shared.b;
	strcpy(buf, "imp");
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 4, mr->rkey, (uintptr_t)buf + 256) && !strcmp(buf + 256, "imp"));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));

	FAILS(ENOENT, ibv_import_dm(unrelated, dm->handle));
	FAILS(ENOENT, ibv_import_dm(other, pd->handle));
	CHECK((other_dm = ibv_import_dm(other, dm->handle)) && other_dm->handle == dm->handle);
	CHECK(!ibv_memcpy_to_dm(dm, 0, "two", 4) && !ibv_memcpy_from_dm(bytes, other_dm, 0, 4));
	CHECK(!strcmp(bytes, "two"));
	ibv_unimport_dm(other_dm);
	uint32_t freed = dm->handle;
	CHECK(!ibv_free_dm(dm));
	FAILS(ENOENT, ibv_import_dm(other, freed));

	/* Unimporting leaves the region; deregistering either object ends it for both. */
	ibv_unimport_mr(mr);
	ibv_unimport_mr(buf_mr); /* It is no import. */
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 4, buf_mr->rkey, (uintptr_t)buf + 300));
	CHECK((mr = ibv_reg_mr(pd, buf, 64, ALL_ACCESS)) && (again = ibv_import_mr(other_pd, mr->handle)));
	uint32_t rkey = mr->rkey, handle = mr->handle;
	CHECK(!ibv_dereg_mr(mr));
	CHECK(rdma(p, IBV_WR_RDMA_WRITE, 0, 4, rkey, (uintptr_t)buf) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(again) == EINVAL);
	ibv_unimport_mr(again);
	FAILS(ENOENT, ibv_import_mr(other_pd, handle));

	ibv_unimport_pd(other_pd);
	CHECK(!ibv_dealloc_pd(unrelated_pd) && !ibv_close_device(unrelated) && !ibv_close_device(other));
	CHECK(fcntl(fd, F_GETFD) == -1 && fcntl(ctx->cmd_fd, F_GETFD) != -1);
	close(file);
}

static void buffers(struct pair *p)
{
	struct buffer *b, *other;
	char *at;
	struct ibv_mr *mr;
	struct ibv_pd *second = ibv_alloc_pd(ctx);
	uint64_t speed;

	CHECK(second && (at = alloc_buf(pd, 5000, &b)) && !((uintptr_t)at % sysconf(_SC_PAGESIZE)));
	FAILS(EINVAL, reg_buf_mr(pd, b, at, 5001, ALL_ACCESS));
	FAILS(EINVAL, reg_buf_mr(pd, b, at - 1, 10, ALL_ACCESS));
	FAILS(EINVAL, reg_buf_mr(pd, b, at + 4999, 2, ALL_ACCESS));
	FAILS(EINVAL, reg_buf_mr(second, b, at, 10, ALL_ACCESS));
	FAILS(EINVAL, reg_buf_mr(pd, NULL, at, 10, ALL_ACCESS));
	CHECK((mr = reg_buf_mr(pd, b, at + 1, 4999, ALL_ACCESS)) && mr->addr == at + 1 && mr->length == 4999);
	strcpy(buf, "buffer");
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 7, mr->rkey, (uintptr_t)at + 1) && !strcmp(at + 1, "buffer"));
	CHECK(!ibv_dereg_mr(mr));

	struct mr_attr attr = { .length = 100, .access = ALL_ACCESS, .comp_mask = ADDR | BUF | IOVA,
		.addr = at, .buf = b, .iova = 0x1000 };
	CHECK((mr = reg_mr_ex(pd, &attr)) && mr->addr == at);
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 7, mr->rkey, 0x1001) && !strcmp(at + 1, "buffer"));
	CHECK(!ibv_dereg_mr(mr));
	attr = (struct mr_attr){ .length = 100, .comp_mask = ADDR, .addr = buf };
	CHECK((mr = reg_mr_ex(pd, &attr)) && !ibv_dereg_mr(mr));
	attr.comp_mask = IOVA;
	FAILS(EINVAL, reg_mr_ex(pd, &attr));
	attr.comp_mask = ADDR | FD;
	FAILS(EINVAL, reg_mr_ex(pd, &attr));
	attr.comp_mask = ADDR | DMAH;
	FAILS(EOPNOTSUPP, reg_mr_ex(pd, &attr));
	CHECK(export_buf(b) == -1 && errno == ENODATA);
	CHECK(alloc_buf(pd, 1, &other));
	free_buf(other);
	free_buf(b);
	free_buf(NULL);
	FAILS(EINVAL, reg_buf_mr(pd, b, at, 10, ALL_ACCESS));

	/* A descriptor that is no dma-buf. */
	int file = memfd_create("memory", 0);
	CHECK(file >= 0 && !ftruncate(file, 4096));
	FAILS(EINVAL, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, file, ALL_ACCESS));
	/* Programs ask in this way whether GPU memory can be registered. */
	FAILS(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, ALL_ACCESS));
	attr = (struct mr_attr){ .length = 100, .comp_mask = FD | FD_OFFSET, .fd = file };
	FAILS(EINVAL, reg_mr_ex(pd, &attr));
	close(file);

	CHECK(!query_port_speed(ctx, 1, &speed) && speed == 1000);
	CHECK(query_port_speed(ctx, 2, &speed) == EINVAL);
	CHECK(!ibv_dealloc_pd(second));
}

static void handles(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } };
	struct ibv_ah *first = ibv_create_ah(pd, &attr), *second = ibv_create_ah(pd, &attr);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, 64, 0);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2), *mw2 = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	uint8_t mac[6] = { 1 };
	uint16_t vlan = 1;

	CHECK(other && first && second && mr && mw && mw2);
	CHECK(pd->handle != other->handle && first->handle != second->handle);
	CHECK(mr->handle != buf_mr->handle && mw->handle != mw2->handle);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dealloc_mw(mw2) && !ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_ah(first) && !ibv_destroy_ah(second) && !ibv_dealloc_pd(other));

	/* The loopback interface has the Ethernet address 0. */
	CHECK(!ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, &vlan) && vlan == 0xffff);
	attr.grh.sgid_index = 250;
	CHECK(ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, &vlan) == -EINVAL);
}

static void parent_domains(void)
{
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_td *td = ibv_alloc_td(ctx, &td_init);
	struct ibv_parent_domain_init_attr init = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &init);
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = pd };
	struct ibv_cq_ex *cq;

	CHECK(td && parent && parent->handle != pd->handle);
	FAILS(EINVAL, ibv_create_cq_ex(ctx, &cq_init));
	cq_init.parent_domain = NULL;
	FAILS(EINVAL, ibv_create_cq_ex(ctx, &cq_init));
	cq_init.parent_domain = parent;
	CHECK((cq = ibv_create_cq_ex(ctx, &cq_init)));
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
}

/* A dma-buf of ordinary memory, for which the kernel has a driver. */
static void dma_bufs(struct pair *p)
{
	struct udmabuf_create create = { .offset = 0, .size = 8192 };
	int device = open("/dev/udmabuf", O_RDWR), memory, fd;
	struct ibv_mr *mr;
	char *map;

	if (device < 0) {
		printf("skipped: needs /dev/udmabuf\n");
		return;
	}
	CHECK((memory = memfd_create("roxie-test", MFD_ALLOW_SEALING)) >= 0 && !ftruncate(memory, 8192));
	CHECK(!fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
	create.memfd = memory;
	CHECK((fd = ioctl(device, UDMABUF_CREATE, &create)) >= 0);
	map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(map != MAP_FAILED);
	CHECK((mr = ibv_reg_dmabuf_mr(pd, 4096, 4096, 0, fd, ALL_ACCESS)));
	memcpy(buf, "to a dma-buf", 12);
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 12, mr->rkey, 100));
	CHECK(!memcmp(map + 4096 + 100, "to a dma-buf", 12));
	memcpy(map + 4096 + 200, "from it", 7);
	CHECK(!rdma(p, IBV_WR_RDMA_READ, 0, 7, mr->rkey, 200) && !memcmp(buf, "from it", 7));
	CHECK(rdma(p, IBV_WR_RDMA_WRITE, 0, 12, mr->rkey, 4090) == IBV_WC_REM_ACCESS_ERR);
	FAILS(EINVAL, ibv_reg_dmabuf_mr(pd, 4096, 8192, 0, fd, ALL_ACCESS));
	/* The region keeps the memory. */
	close(fd);
	CHECK(!rdma(p, IBV_WR_RDMA_WRITE, 0, 7, mr->rkey, 0) && !memcmp(map + 4096, "from it", 7));
	CHECK(!ibv_dereg_mr(mr) && !munmap(map, 8192));
	close(memory);
	close(device);
}

static void capabilities(void)
{
	struct ibv_device_attr_ex attr;

	CHECK(!ibv_query_device_ex(ctx, NULL, &attr));
	/* What UCX and other programs compare with. */
	CHECK(attr.orig_attr.atomic_cap == IBV_ATOMIC_HCA);
	if (attr.odp_caps.general_caps) {
		/* FLUSH and ATOMIC WRITE, which older headers lack. */
		CHECK((attr.odp_caps.per_transport_caps.rc_odp_caps & 0xc0) == 0xc0);
		CHECK(attr.xrc_odp_caps & IBV_ODP_SUPPORT_SRQ_RECV);
	}
}

int main(void)
{
	struct pair p;

	open_device();
	find_symbols();
	make(&p);
	capabilities();
	device_memory(&p);
	imports(&p);
	buffers(&p);
	handles();
	parent_domains();
	dma_bufs(&p);
	unmake(&p);
	close_device();
	return 0;
}
