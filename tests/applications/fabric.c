// libfabric: a client writes to a server's memory, reads it back and compares, and then sends a message.
//   fabric server|client PROVIDER ADDRESS PORT FILE
// PROVIDER is verbs (connected endpoints), or verbs;ofi_rxm (datagrams of any size over them). ADDRESS and
// PORT are the server's. Through FILE the server tells where its memory is.
#include <inttypes.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 20, SECONDS = 60 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *endpoint;
static struct fid_eq *events;
static struct fid_cq *completions;
static struct fid_mr *region;
static fi_addr_t peer = FI_ADDR_UNSPEC;
static unsigned char memory[2 * SIZE];

static void must(long result, const char *what) {
    if (result >= 0) return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
    exit(1);
}

static unsigned char pattern(size_t at) { return (unsigned char)(at * 7 % 251); }

static void compare(const char *what) {
    for (size_t at = 0; at < SIZE; at++)
        if (memory[at] != pattern(at)) {
            fprintf(stderr, "%s: byte %zu is wrong\n", what, at);
            exit(1);
        }
}

static void completion(void) {
    struct fi_cq_entry done;
    long result;
    while ((result = fi_cq_read(completions, &done, 1)) == -FI_EAGAIN) {
    }
    struct fi_cq_err_entry error = {0};
    if (result == -FI_EAVAIL && fi_cq_readerr(completions, &error, 0) > 0) must(-error.err, "completion");
    must(result, "fi_cq_read");
}

// Repeats a call until the queue has a place for it; reading the queue makes progress.
#define POST(call)                                                                              \
    do {                                                                                        \
        long posted;                                                                            \
        while ((posted = (call)) == -FI_EAGAIN) fi_cq_read(completions, NULL, 0);               \
        must(posted, #call);                                                                    \
    } while (0)

static void event(uint32_t wanted, struct fi_eq_cm_entry *entry) {
    uint32_t kind;
    long result = fi_eq_sread(events, &kind, entry, sizeof *entry, SECONDS * 1000, 0);
    struct fi_eq_err_entry error = {0};
    if (result == -FI_EAVAIL && fi_eq_readerr(events, &error, 0) > 0) must(-error.err, "event");
    must(result, "fi_eq_sread");
    if (kind != wanted) must(-FI_EOTHER, "another event");
}

static void make_endpoint(struct fi_info *from) {
    must(fi_endpoint(domain, from, &endpoint, NULL), "fi_endpoint");
    must(fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    if (from->ep_attr->type == FI_EP_MSG) {
        must(fi_ep_bind(endpoint, &events->fid, 0), "fi_ep_bind");
    } else {
        struct fid_av *addresses;
        struct fi_av_attr attributes = {.type = FI_AV_UNSPEC, .count = 2};
        must(fi_av_open(domain, &attributes, &addresses, NULL), "fi_av_open");
        must(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
        void *server = info->dest_addr;
        if (server) must(fi_av_insert(addresses, server, 1, &peer, 0, NULL), "fi_av_insert");
    }
    must(fi_enable(endpoint), "fi_enable");
}

static void open_fabric(int server, const char *provider, const char *address, const char *port) {
    struct fi_info *hints = fi_allocinfo();
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = strchr(provider, ';') ? FI_EP_RDM : FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_RX_CQ_DATA;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->addr_format = FI_SOCKADDR_IN;
    must(fi_getinfo(FI_VERSION(1, 17), address, port, server ? FI_SOURCE : 0, hints, &info), "fi_getinfo");
    must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    struct fi_eq_attr queue = {.wait_obj = FI_WAIT_UNSPEC};
    must(fi_eq_open(fabric, &queue, &events, NULL), "fi_eq_open");
    must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    struct fi_cq_attr attributes = {.format = FI_CQ_FORMAT_CONTEXT, .size = 64};
    must(fi_cq_open(domain, &attributes, &completions, NULL), "fi_cq_open");
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    must(fi_mr_reg(domain, memory, sizeof memory, access, 0, 0, 0, &region, NULL), "fi_mr_reg");
}

static void serve(const char *path) {
    struct fi_eq_cm_entry entry;
    struct fid_pep *listener = NULL;
    char partial[4096];
    snprintf(partial, sizeof partial, "%s.part", path);
    FILE *file = fopen(partial, "w");
    if (!file) must(-FI_EIO, partial);
    fprintf(file, "%" PRIu64 " %" PRIu64 "\n", (uint64_t)(uintptr_t)memory, fi_mr_key(region));
    if (fclose(file) || rename(partial, path)) must(-FI_EIO, path);
    if (info->ep_attr->type == FI_EP_MSG) {
        must(fi_passive_ep(fabric, info, &listener, NULL), "fi_passive_ep");
        must(fi_pep_bind(listener, &events->fid, 0), "fi_pep_bind");
        must(fi_listen(listener), "fi_listen");
        event(FI_CONNREQ, &entry);
        make_endpoint(entry.info);
    } else {
        make_endpoint(info);
    }
    POST(fi_recv(endpoint, memory + SIZE, 64, fi_mr_desc(region), FI_ADDR_UNSPEC, NULL));
    if (listener) {
        must(fi_accept(endpoint, NULL, 0), "fi_accept");
        event(FI_CONNECTED, &entry);
    }
    completion();
    compare("what the client wrote");
    if (strcmp((char *)memory + SIZE, "written")) must(-FI_EIO, "the message");
}

static void use(const char *path) {
    struct fi_eq_cm_entry entry;
    uint64_t address, key;
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%" SCNu64 " %" SCNu64, &address, &key) != 2) must(-FI_EIO, path);
    make_endpoint(info);
    if (info->ep_attr->type == FI_EP_MSG) {
        must(fi_connect(endpoint, info->dest_addr, NULL, 0), "fi_connect");
        event(FI_CONNECTED, &entry);
    }
    void *description = fi_mr_desc(region);
    for (size_t at = 0; at < SIZE; at++) memory[at] = pattern(at);
    POST(fi_write(endpoint, memory, SIZE, description, peer, address, key, NULL));
    completion();
    memset(memory, 0, SIZE);
    POST(fi_read(endpoint, memory, SIZE, description, peer, address, key, NULL));
    completion();
    compare("what was read back");
    strcpy((char *)memory + SIZE, "written");
    POST(fi_send(endpoint, memory + SIZE, 64, description, peer, NULL));
    completion();
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: %s server|client PROVIDER ADDRESS PORT FILE\n", words[0]);
        return 2;
    }
    alarm(SECONDS);
    int server = !strcmp(words[1], "server");
    open_fabric(server, words[2], words[3], words[4]);
    server ? serve(words[5]) : use(words[5]);
    puts("data right");
    fflush(stdout);
    must(fi_close(&endpoint->fid), "fi_close");
    return 0;
}
